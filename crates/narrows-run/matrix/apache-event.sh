# needs: apache2 curl
# scenarios: small big many killed refused
case $role in
server) serve_apache event ;;
client) web ;;
esac
