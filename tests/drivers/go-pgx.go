// pgx with its pool.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var (
	now string // the scenario that runs
	ctx = context.Background()
)

type scenario struct {
	name string
	run  func() string
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool) {
	if !holds {
		panic("not as expected")
	}
}

// Deposes everybody, and returns the token of the new leader.
func takeover(when ...string) string {
	token, err := exec.Command(os.Getenv("TAKEOVER"), when...).Output()
	must(err)
	return strings.TrimSpace(string(token))
}

func write(what string) string { return fmt.Sprintf("INSERT INTO jobs VALUES ('%s', '%s')", now, what) }

func slow() string { return fmt.Sprintf("INSERT INTO jobs SELECT '%s', 'lost' FROM pg_sleep(10)", now) }

func text(token, more string) string {
	where := "postgres://app:pencil@127.0.0.1:" + os.Getenv("PGPORT") + "/app?sslmode=disable" + more
	if token != "" {
		where += "&fencing.token=" + token
	}
	return where
}

func open(token string) (*pgx.Conn, error) { return pgx.Connect(ctx, text(token, "")) }

func connect(token string) *pgx.Conn {
	c, err := open(token)
	must(err)
	return c
}

func try(c *pgx.Conn, sql string) error {
	_, err := c.Exec(ctx, sql)
	return err
}

func run(c *pgx.Conn, sql string) { must(try(c, sql)) }

// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
func refused(err error) string {
	if err == nil {
		panic("nothing was refused")
	}
	var told *pgconn.PgError
	for _, code := range []string{"PF001", "PF002", "08007"} {
		if errors.As(err, &told) && told.Code == code {
			return code
		}
		if strings.Contains(err.Error(), code+": ") {
			return "(" + code + ")"
		}
	}
	for _, word := range []string{"clos", "EOF", "reset", "broken pipe"} {
		if strings.Contains(err.Error(), word) {
			return "lost"
		}
	}
	panic(err)
}

// Rows of a COPY, with a takeover before the second.
type rows struct{ sent int }

func (r *rows) Read(buffer []byte) (int, error) {
	r.sent++
	if r.sent == 2 {
		takeover()
	}
	if r.sent == 3 {
		return 0, fmt.Errorf("no end")
	}
	return copy(buffer, "copy\tlost\n"), nil
}

var scenarios = []scenario{
	// In transaction mode nothing that the driver sets for itself keeps the server connection.
	{"shares", func() string {
		c := connect(takeover())
		run(c, write("kept"))
		if takeover("keeps") != "0" {
			return "keeps"
		}
		return "ok"
	}},
	{"string", func() string { run(connect(takeover()), write("kept")); return "ok" }},
	{"set", func() string {
		c := connect("")
		run(c, "SET fencing.token = "+takeover())
		run(c, write("kept"))
		return "ok"
	}},
	{"local", func() string {
		c := connect("")
		must(inTransaction(c, takeover(), "kept"))
		check(refused(try(c, write("lost"))) == "PF002")
		return "ok"
	}},
	{"old-string", func() string {
		old := takeover()
		run(connect(takeover()), write("kept"))
		_, err := open(old)
		return refused(err)
	}},
	{"old-set", func() string {
		old, token, c := takeover(), takeover(), connect("")
		cell := refused(try(c, "SET fencing.token = "+old))
		refused(try(c, write("lost")))
		run(c, "SET fencing.token = "+token)
		run(c, write("kept"))
		return cell
	}},
	{"old-local", func() string {
		old, token, c := takeover(), takeover(), connect("")
		cell := refused(inTransaction(c, old, "lost"))
		must(inTransaction(c, token, "kept"))
		return cell
	}},
	{"idle", func() string {
		c := connect(takeover())
		run(c, write("kept"))
		takeover()
		return refused(try(c, write("lost")))
	}},
	{"transaction", func() string {
		c := connect(takeover())
		run(c, write("kept"))
		tx, err := c.Begin(ctx)
		must(err)
		run(c, write("lost"))
		takeover()
		return refused(tx.Commit(ctx))
	}},
	{"statement", func() string {
		c := connect(takeover())
		run(c, write("kept"))
		takeover("asleep")
		return refused(try(c, slow()))
	}},
	{"batch", func() string {
		c := connect(takeover())
		run(c, write("kept"))
		takeover("asleep")
		batch := &pgx.Batch{}
		for _, sql := range []string{write("lost"), slow(), write("lost")} {
			batch.Queue(sql)
		}
		results := c.SendBatch(ctx, batch)
		defer results.Close()
		for range [3]int{} {
			if _, err := results.Exec(); err != nil {
				return refused(err)
			}
		}
		return refused(nil)
	}},
	{"copy", func() string {
		c := connect(takeover())
		_, err := c.CopyFrom(ctx, pgx.Identifier{"jobs"}, []string{"scenario", "what"},
			pgx.CopyFromRows([][]interface{}{{"copy", "kept"}}))
		must(err)
		_, err = c.PgConn().CopyFrom(ctx, &rows{}, "COPY jobs FROM STDIN")
		return refused(err)
	}},
	{"fields", func() string {
		old, c := takeover(), connect(takeover())
		run(c, write("kept"))
		var told *pgconn.PgError
		check(errors.As(try(c, "SET fencing.token = "+old), &told) && told.Code == "PF001")
		check(strings.HasPrefix(told.Detail, "The mark of scope "))
		check(strings.HasPrefix(told.Hint, "This process is no longer the leader. "))
		return "ok"
	}},
	// In one pool, the first transactions with the new token fail at most once for each of its connections.
	{"pool", func() string {
		return afterTakeover(1, func(c *pgxpool.Conn, what string) error {
			_, err := c.Exec(ctx, write(what))
			return err
		})
	}},
	// pgx prepares each statement with values, and keeps it.
	{"prepared", func() string {
		return afterTakeover(4, func(c *pgxpool.Conn, what string) error {
			_, err := c.Exec(ctx, "INSERT INTO jobs VALUES ('prepared', $1)", what)
			return err
		})
	}},
	{"cancel", func() string {
		c := connect(takeover())
		go func() {
			time.Sleep(time.Second)
			must(c.PgConn().CancelRequest(ctx))
		}()
		var told *pgconn.PgError
		check(errors.As(try(c, slow()), &told) && told.Code == "57014")
		run(c, write("kept"))
		return "ok"
	}},
	{"notify", func() string {
		c := connect(takeover())
		run(c, "LISTEN jobs")
		run(c, "NOTIFY jobs, 'done'")
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		note, err := c.WaitForNotification(limited)
		must(err)
		check(note.Payload == "done")
		run(c, write("kept"))
		return "ok"
	}},
	{"objects", func() string {
		c := connect(takeover())
		tx, err := c.Begin(ctx)
		must(err)
		objects := tx.LargeObjects()
		id, err := objects.Create(ctx, 0)
		must(err)
		object, err := objects.Open(ctx, id, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		must(err)
		_, err = object.Write([]byte("an object"))
		must(err)
		_, err = object.Seek(0, 0)
		must(err)
		buffer := make([]byte, 9)
		_, err = object.Read(buffer)
		must(err)
		check(string(buffer) == "an object")
		must(objects.Unlink(ctx, id))
		run(c, write("kept"))
		must(tx.Commit(ctx))
		return "ok"
	}},
	{"cursor", func() string { return "n/a pgx reads rows as they come" }},
	{"binary", func() string {
		c := connect(takeover())
		var (
			number int64
			part   float64
			bytes  []byte
		)
		row := c.QueryRow(ctx, "SELECT $1::bigint, $2::float8, $3::bytea", int64(1)<<40, 0.25, []byte{0, 255})
		must(row.Scan(&number, &part, &bytes))
		check(number == 1<<40 && part == 0.25 && string(bytes) == "\x00\xff")
		run(c, write("kept"))
		return "ok"
	}},
	{"autocommit", func() string { return "n/a pgx has none" }},
	{"attrs", func() string {
		c, err := pgx.Connect(ctx, text("", "&target_session_attrs=read-write"))
		must(err)
		run(c, "SET fencing.token = "+takeover())
		run(c, write("kept"))
		return "ok"
	}},
}

func inTransaction(c *pgx.Conn, token, what string) error {
	return c.BeginFunc(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL fencing.token = "+token); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, write(what))
		return err
	})
}

func afterTakeover(times int, write func(c *pgxpool.Conn, what string) error) string {
	pool, err := pgxpool.Connect(ctx, text("", "&pool_min_conns=2&pool_max_conns=2"))
	must(err)
	defer pool.Close()
	transaction := func(token, what string) error {
		return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			return c.BeginFunc(ctx, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "SET LOCAL fencing.token = "+token); err != nil {
					return err
				}
				return write(c, what)
			})
		})
	}
	old := takeover()
	for i := 0; i < times; i++ {
		must(transaction(old, "kept"))
	}
	token := takeover()
	refused(transaction(old, "lost"))
	tries := 0
	for i := 0; i < times; {
		if err := transaction(token, "kept"); err == nil {
			i++
		} else if tries++; tries > 2 {
			panic(err)
		}
	}
	if tries == 0 {
		return "ok"
	}
	return fmt.Sprint("after ", tries)
}

func main() {
	fmt.Println("version: pgx 4")
	for _, scenario := range scenarios {
		if len(os.Args) > 1 && !strings.Contains(" "+strings.Join(os.Args[1:], " ")+" ", " "+scenario.name+" ") {
			continue
		}
		now = scenario.name
		fmt.Printf("%s: %s\n", now, func() (cell string) {
			defer func() {
				if failure := recover(); failure != nil {
					cell = strings.ReplaceAll(fmt.Sprint("FAILED ", failure), "\n", " ")
				}
			}()
			return scenario.run()
		}())
	}
}
