# needs: ruby
# scenarios: small big post many refused
case $role in
server)
    cat >server.rb <<'RUBY'
require 'socket'
require 'digest'
listener = TCPServer.new(ENV['ADDR'], ENV['PORT'].to_i)
loop do
  Thread.new(listener.accept) do |s|
    while (line = s.gets)
      method, path = line.split
      size = 0
      while (head = s.gets) && head != "\r\n"
        size = head.split(':')[1].to_i if head.downcase.start_with?('content-length:')
      end
      body = method == 'POST' ? Digest::SHA256.hexdigest(s.read(size)) : File.binread(ENV['DATA'] + path)
      s.write("HTTP/1.1 200 OK\r\nContent-Length: #{body.bytesize}\r\n\r\n")
      s.write(body)
    end
    s.close
  end
end
RUBY
    $RUN ruby server.rb &
    up "$PORT"
    ;;
client)
    cat >client.rb <<'RUBY'
require 'net/http'
require 'digest'
host, port, scenario = ENV['ADDR'], ENV[ARGV[0] == 'refused' ? 'PORT2' : 'PORT'].to_i, ARGV[0]
of = ->(name) { Digest::SHA256.hexdigest(File.binread(ENV['DATA'] + name)) }
begin
  Net::HTTP.start(host, port, read_timeout: 50, max_retries: 0) do |http|
    case scenario
    when 'post'
      right = http.post('/', File.binread(ENV['DATA'] + '/big'), 'Content-Type' => 'x/y').body == of.('/big')
    when 'many'
      one = (1..64).all? { |i| Digest::SHA256.hexdigest(http.get("/many/#{i}").body) == of.("/many/#{i}") }
      each = (1..64).map { |i| Thread.new { Net::HTTP.get(host, "/many/#{i}", port) } }
      right = one && each.each_with_index.all? { |t, i| Digest::SHA256.hexdigest(t.value) == of.("/many/#{i + 1}") }
    else
      right = Digest::SHA256.hexdigest(http.get("/#{scenario}").body) == of.("/#{scenario}")
    end
    puts right
    exit right
  end
rescue SystemCallError => e
  puts e.class
end
RUBY
    exits 0 $RUN ruby client.rb $scenario
    ;;
esac
