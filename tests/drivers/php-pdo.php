<?php
// PDO.

$now = ''; // the scenario that runs

// Deposes everybody, and returns the token of the new leader.
function takeover(string $when = ''): string
{
    exec(getenv('TAKEOVER') . " $when", $output, $code);
    check($code === 0);
    return $output[0] ?? '';
}

function write(string $what): string
{
    return "INSERT INTO jobs VALUES ('{$GLOBALS['now']}', '$what')";
}

function slow(): string
{
    return "INSERT INTO jobs SELECT '{$GLOBALS['now']}', 'lost' FROM pg_sleep(10)";
}

function check(bool $holds): void
{
    if (!$holds) {
        throw new Exception('not as expected');
    }
}

function connect(?string $token = null, string $more = ''): PDO
{
    $options = $token === null ? '' : "options='-c fencing.token=$token'";
    return new PDO("pgsql:host=127.0.0.1;port=" . getenv('PGPORT') . ";dbname=app;$options;$more", 'app', 'pencil');
}

// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
function refused(callable $doing): string
{
    try {
        $doing();
    } catch (PDOException $e) {
        foreach (['PF001', 'PF002', '08007'] as $code) {
            if (($e->errorInfo[0] ?? $e->getCode()) === $code) {
                return $code;
            }
            if (str_contains($e->getMessage(), "$code: ")) {
                return "($code)";
            }
        }
        if (preg_match('/clos|lost|terminat|no connection/', $e->getMessage())) {
            return 'lost';
        }
        throw $e;
    }
    throw new Exception('nothing was refused');
}

function transaction(PDO $c, string $token, string $what): void
{
    $c->beginTransaction();
    try {
        $c->exec("SET LOCAL fencing.token = $token");
        $c->exec(write($what));
        $c->commit();
    } finally {
        if ($c->inTransaction()) {
            $c->rollBack();
        }
    }
}

$scenarios = [
    // In transaction mode nothing that the driver sets for itself keeps the server connection.
    'shares' => function () {
        $c = connect(takeover());
        $c->exec(write('kept'));
        return takeover('keeps') === '0' ? 'ok' : 'keeps';
    },
    'string' => function () {
        connect(takeover())->exec(write('kept'));
    },
    'set' => function () {
        $c = connect();
        $c->exec('SET fencing.token = ' . takeover());
        $c->exec(write('kept'));
    },
    'local' => function () {
        $c = connect();
        transaction($c, takeover(), 'kept');
        check(refused(fn() => $c->exec(write('lost'))) === 'PF002');
    },
    'old-string' => function () {
        $old = takeover();
        connect(takeover())->exec(write('kept'));
        return refused(fn() => connect($old));
    },
    'old-set' => function () {
        [$old, $token, $c] = [takeover(), takeover(), connect()];
        $cell = refused(fn() => $c->exec("SET fencing.token = $old"));
        refused(fn() => $c->exec(write('lost')));
        $c->exec("SET fencing.token = $token");
        $c->exec(write('kept'));
        return $cell;
    },
    'old-local' => function () {
        [$old, $token, $c] = [takeover(), takeover(), connect()];
        $cell = refused(fn() => transaction($c, $old, 'lost'));
        transaction($c, $token, 'kept');
        return $cell;
    },
    'idle' => function () {
        $c = connect(takeover());
        $c->exec(write('kept'));
        takeover();
        return refused(fn() => $c->exec(write('lost')));
    },
    'transaction' => function () {
        $c = connect(takeover());
        $c->exec(write('kept'));
        $c->beginTransaction();
        $c->exec(write('lost'));
        takeover();
        return refused(fn() => $c->commit());
    },
    'statement' => function () {
        $c = connect(takeover());
        $c->exec(write('kept'));
        takeover('asleep');
        return refused(fn() => $c->exec(slow()));
    },
    'batch' => function () {
        $c = connect(takeover());
        $c->exec(write('kept'));
        takeover('asleep');
        return refused(fn() => $c->exec(implode('; ', [write('lost'), slow(), write('lost')])));
    },
    'copy' => function () {
        $c = connect(takeover());
        $c->pgsqlCopyFromArray('jobs', ["copy\tkept"]);
        // PDO reads all rows first, and a trigger makes them slow.
        takeover('asleep');
        return refused(fn() => check($c->pgsqlCopyFromArray('late', ["copy\tlost", "copy\tlost"])));
    },
    'autocommit' => fn() => 'n/a PDO for PostgreSQL has none',
    'fields' => function () {
        [$old, $c] = [takeover(), connect(takeover())];
        $c->exec(write('kept'));
        try {
            $c->exec("SET fencing.token = $old");
        } catch (PDOException $e) {
            check($e->getCode() === 'PF001');
            check(str_contains($e->getMessage(), 'DETAIL:  The mark of scope '));
            return str_contains($e->getMessage(), 'HINT:  This process is no longer') ? 'ok' : 'no HINT';
        }
        throw new Exception('nothing was refused');
    },
    'pool' => function () {
        // A persistent connection is the pool of a worker.
        $open = fn() => new PDO('pgsql:host=127.0.0.1;port=' . getenv('PGPORT') . ';dbname=app', 'app', 'pencil',
            [PDO::ATTR_PERSISTENT => true]);
        [$old, $c] = [takeover(), $open()];
        transaction($c, $old, 'kept');
        $token = takeover();
        refused(fn() => transaction($c, $old, 'lost'));
        $c = null;
        for ($tries = 0; $tries < 3; $tries++) {
            try {
                $c = $open();
                transaction($c, $token, 'kept');
                return $tries ? "after $tries" : 'ok';
            } catch (PDOException $e) {
                $c = null;
            }
        }
        throw $e;
    },
    'prepared' => function () {
        $c = connect(takeover());
        $insert = $c->prepare("INSERT INTO jobs VALUES ('prepared', ?)");
        $insert->execute(['kept']);
        $insert->execute(['kept']);
        $token = takeover();
        refused(fn() => $insert->execute(['lost']));
        try {
            $c->exec("SET fencing.token = $token");
        } catch (PDOException) {
            $c = connect($token);
            $insert = $c->prepare("INSERT INTO jobs VALUES ('prepared', ?)");
        }
        $insert->execute(['kept']);
        $insert->execute(['kept']);
    },
    'cancel' => fn() => 'n/a PDO has none',
    'notify' => function () {
        $c = connect(takeover());
        $c->exec('LISTEN jobs');
        $c->exec("NOTIFY jobs, 'done'");
        check($c->pgsqlGetNotify(PDO::FETCH_ASSOC, 5000)['payload'] === 'done');
        $c->exec(write('kept'));
    },
    'objects' => function () {
        $c = connect(takeover());
        $c->beginTransaction();
        $id = $c->pgsqlLOBCreate();
        $object = $c->pgsqlLOBOpen($id, 'w');
        fwrite($object, 'an object');
        $object = null;
        check(stream_get_contents($c->pgsqlLOBOpen($id, 'r')) === 'an object');
        $c->pgsqlLOBUnlink($id);
        $c->exec(write('kept'));
        $c->commit();
    },
    'cursor' => function () {
        $c = connect(takeover());
        $c->beginTransaction();
        $rows = $c->prepare('SELECT generate_series(1, 1000)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $rows->execute();
        check($rows->fetchColumn() === 1);
        $c->exec(write('kept'));
        check($rows->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_LAST)[0] === 1000);
        $c->commit();
    },
    'binary' => function () {
        $c = connect(takeover());
        $select = $c->prepare('SELECT ?::bytea');
        $select->bindValue(1, "\0\xff", PDO::PARAM_LOB);
        $select->execute();
        check(stream_get_contents($select->fetchColumn()) === "\0\xff");
        $c->exec(write('kept'));
    },
    'attrs' => function () {
        $c = connect(null, 'target_session_attrs=read-write');
        $c->exec('SET fencing.token = ' . takeover());
        $c->exec(write('kept'));
    },
];

echo 'version: PDO of PHP ', PHP_VERSION, "\n";
foreach ($scenarios as $now => $scenario) {
    if ($argc > 1 && !in_array($now, $argv, true)) {
        continue;
    }
    try {
        $cell = $scenario() ?? 'ok';
    } catch (Throwable $e) {
        $cell = strtr("FAILED at {$e->getLine()}: {$e->getMessage()}", "\n", ' ');
    }
    echo "$now: $cell\n";
}
