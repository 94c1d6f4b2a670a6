# needs: apache2 curl
# scenarios: small big many killed refused
modules=/usr/lib/apache2/modules
case $role in
server)
    cat >httpd.conf <<CONF
ServerRoot $DIR
ServerName lab
PidFile $DIR/httpd.pid
Mutex file:$DIR
ErrorLog $DIR/error.log
Listen $ADDR:$PORT
LoadModule mpm_prefork_module $modules/mod_mpm_prefork.so
LoadModule authz_core_module $modules/mod_authz_core.so
DocumentRoot $DATA
<Directory />
Require all granted
</Directory>
StartServers 2
CONF
    if [ "$(id -u)" = 0 ]; then printf 'User nobody\nGroup nogroup\n' >>httpd.conf; fi
    $RUN apache2 -d "$DIR" -f "$DIR/httpd.conf" -DFOREGROUND &
    up "$PORT"
    ;;
client) web ;;
esac
