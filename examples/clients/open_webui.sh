#!/bin/sh
# Open WebUI in front of a server: `sh open_webui.sh`, then http://127.0.0.1:8080, or the port OPEN_WEBUI_PORT. It needs
# `pip install open-webui` (7 GB); `sh open_webui.sh --check` only asks what its connection asks, which needs curl alone.
set -eu
base=${ESPALIER_URL:-http://127.0.0.1:30000}
if [ "${1-}" = --check ]; then
  curl -fsS "$base/v1/models" | grep -q '"id"'
  curl -fsS "$base/v1/chat/completions" -H 'Content-Type: application/json' -d '{"model": "default", "stream": true,
    "stream_options": {"include_usage": true}, "max_tokens": 8, "messages": [{"role": "user", "content":
    [{"type": "text", "text": "What is the capital of France?"}]}]}' | grep '"completion_tokens"'
  exit 0
fi
OPENAI_API_BASE_URL=$base/v1 OPENAI_API_KEY=${ESPALIER_API_KEY:-any} ENABLE_OLLAMA_API=false WEBUI_AUTH=false \
  exec open-webui serve --host 127.0.0.1 --port "${OPEN_WEBUI_PORT:-8080}"
