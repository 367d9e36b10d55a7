// The layout of monitoring mixins (https://monitoring.mixins.dev), for those who build their rules with jsonnet.
// The files beside this one are made by Python (python -m dashboards.alerts, python -m dashboards.boards).
{
  _config+:: {
    // Where you publish docs/: dashboards link the page about a command there.
    docs: 'file:///opt/tickscope/docs',
    // The runbook of an alert; %s is the name of the alert.
    runbookURLPattern: self.docs + '/runbooks/%s.md',
  },

  local board(made) = made {
    templating+: { list: [if v.name == 'docs' then v { query: $._config.docs } else v for v in made.templating.list] },
  },
  local alert(rule) = rule {
    annotations+: { runbook_url: $._config.runbookURLPattern % rule.alert },
  },

  prometheusAlerts+:: { groups: [g { rules: std.map(alert, g.rules) } for g in (import 'alerts.yaml').groups] },
  prometheusRules+:: import 'rules.yaml',
  grafanaDashboards+:: {
    'tickscope-overview.json': board(import 'overview.json'),
    'tickscope-clocks.json': board(import 'clocks.json'),
    'tickscope-limiters.json': board(import 'limiters.json'),
    'tickscope-queues.json': board(import 'queues.json'),
    'tickscope-findings.json': board(import 'findings.json'),
    'tickscope-agent.json': board(import 'agent.json'),
  },
}
