# needs: perl
# scenarios: small big half-close many refused
# A server that forks for each connection.
case $role in
server)
    cat >server.pl <<'PERL'
use strict; use warnings; use IO::Socket::INET; use Digest::SHA;
$SIG{CHLD} = 'IGNORE';
my $l = IO::Socket::INET->new(LocalAddr => $ENV{ADDR}, LocalPort => $ENV{PORT}, Listen => 500, ReuseAddr => 1) or die $!;
while (my $s = $l->accept) {
    next if fork;
    my $word = <$s>; chomp $word;
    if ($word eq 'hash') {
        my $hash = Digest::SHA->new(256);
        $hash->add($_) while read $s, $_, 65536;
        print $s $hash->hexdigest, "\n";
    } else {
        open my $f, '<:raw', "$ENV{DATA}/$word" or die $!;
        local $/ = \65536;
        print $s $_ while <$f>;
    }
    close $s;
    exit 0;
}
PERL
    $RUN perl server.pl &
    up "$PORT"
    ;;
client)
    cat >client.pl <<'PERL'
use strict; use warnings; use IO::Socket::INET; use Digest::SHA;
my $scenario = shift;
alarm 50;
sub file { open my $f, '<:raw', "$ENV{DATA}/$_[0]" or die $!; local $/; return <$f> }
sub ask { my $s = IO::Socket::INET->new(PeerAddr => $ENV{ADDR}, PeerPort => $_[0]) or return; return $s }
sub get { my $s = ask($ENV{PORT}) or die $!; print $s "$_[0]\n"; local $/; my $all = <$s>; return $all }
my $right;
if ($scenario eq 'half-close') {
    my $s = ask($ENV{PORT});
    print $s "hash\n", file('big');
    $s->flush;
    shutdown $s, 1;
    my $line = <$s>; chomp $line;
    $right = $line eq Digest::SHA::sha256_hex(file('big'));
} elsif ($scenario eq 'many') {
    $right = 1;
    $right &&= get("many/$_") eq file("many/$_") for 1 .. 64;
} elsif ($scenario eq 'refused') {
    $right = !ask($ENV{PORT2});
    print $!{ECONNREFUSED} ? "refused\n" : "$!\n";
} else {
    $right = get($scenario) eq file($scenario);
}
exit !$right;
PERL
    exits 0 $RUN perl client.pl $scenario
    ;;
esac
