// pgx with its pool.
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

type pgxConnection struct{ *pgx.Conn }

func open(token, more string) (connection, error) {
	c, err := pgx.Connect(ctx, text(token, more))
	return pgxConnection{c}, err
}

func (c pgxConnection) try(sql string) error {
	_, err := c.Exec(ctx, sql)
	return err
}

func (c pgxConnection) transaction(work func() error) error {
	return c.BeginFunc(ctx, func(pgx.Tx) error { return work() })
}

func told(err error) (state, detail, hint string) {
	var told *pgconn.PgError
	if errors.As(err, &told) {
		return told.Code, told.Detail, told.Hint
	}
	return
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

func pooled(times int, write func(tx pgx.Tx, what string) error) string {
	pool, err := pgxpool.Connect(ctx, text("", "&pool_min_conns=2&pool_max_conns=2"))
	must(err)
	defer pool.Close()
	return afterTakeover(times, func(token, what string) error {
		return pool.BeginFunc(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL fencing.token = "+token); err != nil {
				return err
			}
			return write(tx, what)
		})
	})
}

var own = []scenario{
	{"batch", func() string {
		c := leader().(pgxConnection)
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
		c := leader().(pgxConnection)
		_, err := c.CopyFrom(ctx, pgx.Identifier{"jobs"}, []string{"scenario", "what"},
			pgx.CopyFromRows([][]interface{}{{"copy", "kept"}}))
		must(err)
		_, err = c.PgConn().CopyFrom(ctx, &rows{}, "COPY jobs FROM STDIN")
		return refused(err)
	}},
	{"pool", func() string {
		return pooled(1, func(tx pgx.Tx, what string) error {
			_, err := tx.Exec(ctx, write(what))
			return err
		})
	}},
	// pgx prepares each statement with values, and keeps it.
	{"prepared", func() string {
		return pooled(4, func(tx pgx.Tx, what string) error {
			_, err := tx.Exec(ctx, "INSERT INTO jobs VALUES ('prepared', $1)", what)
			return err
		})
	}},
	{"cancel", func() string {
		c := leader().(pgxConnection)
		go func() {
			time.Sleep(time.Second)
			must(c.PgConn().CancelRequest(ctx))
		}()
		state, _, _ := told(c.try(slow()))
		check(state == "57014")
		run(c, write("kept"))
		return "ok"
	}},
	{"notify", func() string {
		c := leader().(pgxConnection)
		run(c, "LISTEN jobs")
		run(c, "NOTIFY jobs, 'done'")
		limited, cancel := seconds(5)
		defer cancel()
		note, err := c.WaitForNotification(limited)
		must(err)
		check(note.Payload == "done")
		return "ok"
	}},
	{"objects", func() string {
		c := leader().(pgxConnection)
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
		must(tx.Commit(ctx))
		return "ok"
	}},
	{"binary", func() string {
		c := leader().(pgxConnection)
		var (
			number int64
			part   float64
			bytes  []byte
		)
		row := c.QueryRow(ctx, "SELECT $1::bigint, $2::float8, $3::bytea", int64(1)<<40, 0.25, []byte{0, 255})
		must(row.Scan(&number, &part, &bytes))
		check(number == 1<<40 && part == 0.25 && string(bytes) == "\x00\xff")
		return "ok"
	}},
	{"attrs", func() string {
		c, err := open("", "&target_session_attrs=read-write")
		must(err)
		return follow(c)
	}},
}

func main() {
	of := driver{func(token string) (connection, error) { return open(token, "") }, told}
	suite("pgx 4", of, own, "cursor", "autocommit")
}
