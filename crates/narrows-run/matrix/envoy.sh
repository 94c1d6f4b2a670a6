# needs: envoy curl python3
# scenarios: small big many
case $role in
server)
    cat >envoy.yaml <<CONF
static_resources:
  listeners:
  - address: { socket_address: { address: $ADDR, port_value: $PORT } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: lab
          cluster: back
  clusters:
  - name: back
    connect_timeout: 5s
    type: STATIC
    load_assignment:
      cluster_name: back
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: $ADDR, port_value: $PORT2 } } }
CONF
    (cd "$DATA" && exec python3 -m http.server --bind "$ADDR" "$PORT2") &
    await "$PORT2"
    $RUN envoy -c envoy.yaml -l error --use-dynamic-base-id &
    up "$PORT"
    ;;
client) web ;;
esac
