# needs: apache2 curl
# scenarios: small big many killed refused
case $role in
server) serve_apache prefork ;;
client) web ;;
esac
