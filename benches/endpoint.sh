#!/usr/bin/env bash
# What a check costs over HTTP: `headcount serve` beside a bare axum handler, and nginx with its recipe beside nginx alone.
# The four take turns, so that other load slows all of them; the results are medians. Needs wrk and nginx; all listen on
# loopback.
#
#   benches/endpoint.sh [ROUNDS] [SECONDS]     7 rounds of 3 s for each of the four: a minute and a half
set -euo pipefail
cd "$(dirname "$0")/.."
rounds="${1:-7}" seconds="${2:-3}"
PATH="$PATH:/usr/sbin"
for program in wrk nginx; do
    command -v "$program" >/dev/null || { echo "$0: $program is needed: apt-get install $program" >&2; exit 1; }
done
cargo build --release --quiet --features full --bin headcount --example bare_axum
work="$(mktemp -d)"
pids=()
finish() { kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"; }
trap finish EXIT

free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
app="$(free)" check="$(free)" guarded="$(free)" plain="$(free)"
target/release/examples/bare_axum "127.0.0.1:$app" >/dev/null & pids+=($!)
cat >"$work/headcount.toml" <<TOML
[admission]
max_active_users = 20000
[server]
trusted_proxies = ["127.0.0.1"]
TOML
XDG_STATE_HOME="$work" RUST_LOG=error target/release/headcount serve -c "$work/headcount.toml" \
    --listen "127.0.0.1:$check" --admin 127.0.0.1:0 >/dev/null & pids+=($!)
{
    echo "daemon off; user root; pid $work/nginx.pid; error_log stderr; worker_processes 1; events { worker_connections 1024; }"
    echo "http { access_log off;"
    for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $work/$kind;"; done
    target/release/headcount config nginx |
        sed "s/listen 80;/listen 127.0.0.1:$guarded;/; s/127.0.0.1:7070/127.0.0.1:$check/; s/127.0.0.1:8080/127.0.0.1:$app/"
    echo "server { listen 127.0.0.1:$plain; location / { proxy_pass http://app; proxy_http_version 1.1;"
    echo "proxy_set_header Connection \"\"; proxy_set_header Host \$http_host; } } }"
} >"$work/nginx.conf"
nginx -p "$work" -c "$work/nginx.conf" -e stderr & pids+=($!)
for port in "$app" "$check" "$guarded" "$plain"; do
    for _ in $(seq 100); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.05; done
done

declare -A path=([bare]="$app/" [check]="$check/v1/check" [plain]="$plain/" [guarded]="$guarded/")
measure() {
    wrk -t1 -c16 -d"${seconds}s" -H 'Authorization: Bearer alice' "http://127.0.0.1:${path[$1]}" |
        awk '/Requests\/sec/ { print $2 } /Non-2xx/ { print "failed" > "/dev/stderr"; exit 1 }'
}
for kind in bare check plain guarded; do measure "$kind" >/dev/null; done
for _ in $(seq "$rounds"); do
    for kind in bare check plain guarded; do measure "$kind" >>"$work/$kind.txt"; done
done
median() { sort -n "$work/$1.txt" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
awk -v bare="$(median bare)" -v check="$(median check)" -v plain="$(median plain)" -v guarded="$(median guarded)" 'BEGIN {
    printf "requests a second, one client thread with 16 connections, medians of the rounds\n"
    printf "  a bare axum handler        %8.0f\n  headcount serve, a check   %8.0f   %.2f x\n", bare, check, check / bare
    printf "  nginx alone                %8.0f\n  nginx with its recipe      %8.0f   %.2f x\n", plain, guarded, guarded / plain
}'
