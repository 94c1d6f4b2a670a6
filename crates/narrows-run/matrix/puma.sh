# needs: puma ruby
# scenarios: get post stream parallel refused
# A cluster of two processes with threads on one listener.
case $role in
server)
    cat >config.ru <<'RU'
require 'digest'
BIG = File.binread(ENV['DATA'] + '/big')
run lambda { |env|
  case env['PATH_INFO']
  when '/big' then [200, {'Content-Type' => 'text/plain'}, [BIG]]
  when '/sum' then [200, {}, [Digest::SHA256.hexdigest(env['rack.input'].read)]]
  when '/who' then [200, {}, [env['REMOTE_ADDR']]]
  when '/stream' then [200, {}, Enumerator.new { |y| 20.times { |i| y << "part #{i}\n"; sleep 0.01 } }]
  else [404, {}, ['no']]
  end
}
RU
    HOME=$DIR $RUN puma -q -b "tcp://$ADDR:$PORT" -t 4:8 -w 2 config.ru >log &
    await "$PORT"
    up "$PORT"
    ;;
client)
    cat >lab.rb <<'RB'
require 'net/http'
require 'digest'
at, port, what = ENV['ADDR'], ENV['PORT'].to_i, ARGV[0]
big = File.binread(ENV['DATA'] + '/big')
def sum(text) = Digest::SHA256.hexdigest(text)
begin
  case what
  when 'parallel'
    threads = 8.times.map { Thread.new { 10.times.map { Net::HTTP.get_response(at, '/stream', port).body.size } } }
    p threads.map(&:value)
  when 'refused'
    Net::HTTP.get_response(at, '/', ENV['PORT2'].to_i)
  else
    Net::HTTP.start(at, port, read_timeout: 40) do |http|
      case what
      when 'get' then 2.times { puts sum(http.get('/big').body) == sum(big) }
      when 'post' then 2.times { puts http.post('/sum', big).body == sum(big) }
      else puts http.get('/stream').body, http.get('/no').code
      end
    end
  end
rescue SystemCallError => e
  puts e.class
end
RB
    exits 0 $RUN ruby lab.rb $scenario
    ;;
esac
