"""nginx with TLS on the far side."""

from __future__ import annotations

import os
import shutil

from agent.lab.program import FAR, LabProgram, Run

PORT = 8443
CONFIG = """
daemon off; worker_processes 1; pid {own}/pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {own}/a; proxy_temp_path {own}/b; fastcgi_temp_path {own}/c;
  uwsgi_temp_path {own}/d; scgi_temp_path {own}/e;
  server {{
    listen {far}:{port} ssl;
    ssl_certificate {shared}/tls.crt; ssl_certificate_key {shared}/tls.key;
    ssl_session_cache off; ssl_session_tickets off;
    location / {{ return 200 "ok\\n"; }}
  }}
}}
"""


def serve(run: Run) -> None:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise FileNotFoundError("nginx is not installed (apt install nginx-light)")
    config = run.directory / "nginx.conf"
    config.write_text(CONFIG.format(own=run.directory, shared=run.shared, far=FAR, port=PORT))
    os.execve(program, [program, "-p", str(run.directory), "-c", str(config)], {"PATH": os.environ.get("PATH", "")})


PROGRAMS = (LabProgram("nginx", serve, "far", names=(f"{FAR}:{PORT}",), server=True, comm="nginx"),)
