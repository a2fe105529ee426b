# DBD::Pg.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);

our $now = '';    # the scenario that runs
$| = 1;

# Deposes everybody, and returns the token of the new leader.
sub takeover { my $token = `$ENV{TAKEOVER} @_`; die "no takeover" if $?; chomp $token; return $token }
sub write_ { my ($what) = @_; return "INSERT INTO jobs VALUES ('$now', '$what')" }
sub slow { return "INSERT INTO jobs SELECT '$now', 'lost' FROM pg_sleep(10)" }
sub check { my ($holds) = @_; die "not as expected\n" unless $holds }

sub connect_ {
    my ($token, %more) = @_;
    my $options = defined $token ? "options='-c fencing.token=$token'" : '';
    my $attrs = delete $more{attrs} // '';
    return DBI->connect("dbi:Pg:host=127.0.0.1 $options $attrs", 'app', 'pencil',
        { AutoCommit => 1, RaiseError => 1, PrintError => 0, %more });
}

# How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
sub refused {
    my ($doing) = @_;
    die "nothing was refused\n" if eval { $doing->(); 1 };
    my ($error, $state) = ($@, $DBI::state // '');
    for my $code (qw(PF001 PF002 08007)) {
        return $code if $state eq $code;
        return "($code)" if $error =~ /$code: /;
    }
    return 'lost' if $error =~ /clos|lost|terminat|no connection/;
    die $error;
}

my @scenarios = (
    # In transaction mode nothing that the driver sets for itself keeps the server connection.
    shares => sub {
        my $c = connect_(takeover());
        $c->do(write_('kept'));
        takeover('keeps') eq '0' ? 'ok' : 'keeps';
    },
    string => sub { connect_(takeover())->do(write_('kept')); 'ok' },
    set => sub {
        my $c = connect_();
        $c->do('SET fencing.token = ' . takeover());
        $c->do(write_('kept'));
        'ok';
    },
    local => sub {
        my $c = connect_();
        transaction($c, takeover(), 'kept');
        check(refused(sub { $c->do(write_('lost')) }) eq 'PF002');
        'ok';
    },
    'old-string' => sub {
        my $old = takeover();
        connect_(takeover())->do(write_('kept'));
        refused(sub { connect_($old) });
    },
    'old-set' => sub {
        my ($old, $token, $c) = (takeover(), takeover(), connect_());
        my $cell = refused(sub { $c->do("SET fencing.token = $old") });
        refused(sub { $c->do(write_('lost')) });
        $c->do("SET fencing.token = $token");
        $c->do(write_('kept'));
        $cell;
    },
    'old-local' => sub {
        my ($old, $token, $c) = (takeover(), takeover(), connect_());
        my $cell = refused(sub { transaction($c, $old, 'lost') });
        $c->rollback;
        transaction($c, $token, 'kept');
        $cell;
    },
    idle => sub {
        my $c = connect_(takeover());
        $c->do(write_('kept'));
        takeover();
        refused(sub { $c->do(write_('lost')) });
    },
    transaction => sub {
        my $c = connect_(takeover());
        $c->do(write_('kept'));
        $c->begin_work;
        $c->do(write_('lost'));
        takeover();
        refused(sub { $c->commit });
    },
    statement => sub {
        my $c = connect_(takeover());
        $c->do(write_('kept'));
        takeover('asleep');
        refused(sub { $c->do(slow()) });
    },
    batch => sub {
        my $c = connect_(takeover());
        $c->do(write_('kept'));
        takeover('asleep');
        refused(sub { $c->do(join '; ', write_('lost'), slow(), write_('lost')) });
    },
    copy => sub {
        my $c = connect_(takeover());
        $c->do('COPY jobs FROM STDIN');
        $c->pg_putcopydata("copy\tkept\n");
        $c->pg_putcopyend;
        $c->do('COPY jobs FROM STDIN');
        refused(sub {
            $c->pg_putcopydata("copy\tlost\n");
            takeover();
            $c->pg_putcopydata("copy\tlost\n");
            $c->pg_putcopyend;
        });
    },
    autocommit => sub {
        my $c = connect_(undef, AutoCommit => 0);
        $c->do('SET fencing.token = ' . takeover());
        $c->do(write_('kept'));
        $c->commit;
        $c->do(write_('lost'));
        takeover();
        refused(sub { $c->commit });
    },
    fields => sub {
        my ($old, $c) = (takeover(), connect_(takeover()));
        $c->do(write_('kept'));
        check(refused(sub { $c->do("SET fencing.token = $old") }) eq 'PF001');
        check($c->pg_error_field('detail') =~ /^The mark of scope /);
        check($c->pg_error_field('hint') =~ /^This process is no longer the leader\. /);
        'ok';
    },
    pool => sub { 'n/a DBI has none' },
    prepared => sub {
        my $c = connect_(takeover(), pg_switch_prepared => 1);
        my $insert = $c->prepare("INSERT INTO jobs VALUES ('prepared', ?)");
        $insert->execute('kept') for 1 .. 3;
        my $token = takeover();
        refused(sub { $insert->execute('lost') });
        if ($c->ping) {
            $c->do("SET fencing.token = $token");
        } else {
            $c = connect_($token, pg_switch_prepared => 1);
            $insert = $c->prepare("INSERT INTO jobs VALUES ('prepared', ?)");
        }
        $insert->execute('kept') for 1 .. 3;
        'ok';
    },
    cancel => sub {
        my $c = connect_(takeover());
        $c->do(slow(), { pg_async => PG_ASYNC });
        select undef, undef, undef, 1;
        check($c->pg_cancel);
        $c->do(write_('kept'));
        'ok';
    },
    notify => sub {
        my $c = connect_(takeover());
        $c->do('LISTEN jobs');
        $c->do("NOTIFY jobs, 'done'");
        check($c->pg_notifies->[2] eq 'done');
        $c->do(write_('kept'));
        'ok';
    },
    objects => sub {
        my $c = connect_(takeover());
        $c->begin_work;
        my $id = $c->pg_lo_creat($c->{pg_INV_READ} | $c->{pg_INV_WRITE});
        my $object = $c->pg_lo_open($id, $c->{pg_INV_READ} | $c->{pg_INV_WRITE});
        $c->pg_lo_write($object, 'an object', 9);
        $c->pg_lo_lseek($object, 0, 0);
        my $read = '';
        $c->pg_lo_read($object, $read, 9);
        check($read eq 'an object');
        $c->pg_lo_unlink($id);
        $c->do(write_('kept'));
        $c->commit;
        'ok';
    },
    cursor => sub {
        my $c = connect_(takeover());
        $c->begin_work;
        $c->do('DECLARE rows CURSOR FOR SELECT generate_series(1, 1000)');
        check($c->selectcol_arrayref('FETCH 10 FROM rows')->[-1] == 10);
        $c->do(write_('kept'));
        check($c->selectcol_arrayref('FETCH 990 FROM rows')->[-1] == 1000);
        $c->commit;
        'ok';
    },
    binary => sub {
        my $c = connect_(takeover());
        my $select = $c->prepare('SELECT ?::bytea');
        $select->bind_param(1, "\0\xff", { pg_type => DBD::Pg::PG_BYTEA });
        $select->execute;
        check($select->fetchrow_array eq "\0\xff");
        $c->do(write_('kept'));
        'ok';
    },
    attrs => sub {
        my $c = connect_(undef, attrs => 'target_session_attrs=read-write');
        $c->do('SET fencing.token = ' . takeover());
        $c->do(write_('kept'));
        'ok';
    },
);

sub transaction {
    my ($c, $token, $what) = @_;
    $c->begin_work;
    $c->do("SET LOCAL fencing.token = $token");
    $c->do(write_($what));
    $c->commit;
}

print "version: DBD::Pg $DBD::Pg::VERSION\n";
while (my ($name, $run) = splice @scenarios, 0, 2) {
    next if @ARGV && !grep { $_ eq $name } @ARGV;
    $now = $name;
    my $cell = eval { $run->() } // "FAILED $@";
    $cell =~ tr/\n/ /;
    print "$name: $cell\n";
}
