{{- define "tickscope.name" -}}
{{- if contains "tickscope" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-tickscope{{ end -}}
{{- end }}

{{- define "tickscope.selector" -}}
app.kubernetes.io/name: tickscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tickscope.labels" -}}
{{ include "tickscope.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The file of settings. A ServiceMonitor needs a metrics page that Prometheus reaches. */}}
{{- define "tickscope.settings" -}}
{{- $settings := deepCopy (.Values.settings | default dict) }}
{{- if .Values.serviceMonitor.enabled }}
{{- $settings = merge $settings (dict "prometheus" "0.0.0.0:9469") }}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" $settings.prometheus }}
{{- fail (printf "settings.prometheus: Prometheus cannot reach %s; name another address, or disable serviceMonitor" $settings.prometheus) }}
{{- end }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{/* To load BPF programs and attach uprobes; by kernel. */}}
{{- define "tickscope.capabilities.bpf" -}}
- BPF
- PERFMON
{{- if semverCompare "<6.6" .Values.kernel }}
- SYS_ADMIN
{{- end }}
{{- if semverCompare "<5.11" .Values.kernel }}
- SYS_RESOURCE
{{- end }}
{{- end }}

{{/* Where the container runtime keeps the files that say what a container is (agent/common/runtimes.py). */}}
{{- define "tickscope.containers" -}}
{{- get (dict
  "containerd" "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
  "k3s" "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io"
  "microk8s" "/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io"
  "crio" "/run/containers/storage/overlay-containers"
  "docker" "/var/lib/docker/containers"
) .Values.runtime }}
{{- end }}
