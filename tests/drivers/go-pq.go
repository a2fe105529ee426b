// lib/pq with the pool of database/sql.
package main

import (
	"database/sql"
	"errors"
	"time"

	"github.com/lib/pq"
)

type pqConnection struct{ *sql.Conn }

func database(token, more string) *sql.DB {
	db, err := sql.Open("postgres", text(token, more))
	must(err)
	return db
}

func open(token string) (connection, error) {
	c, err := database(token, "").Conn(ctx)
	return pqConnection{c}, err
}

func (c pqConnection) try(sql string) error {
	_, err := c.ExecContext(ctx, sql)
	return err
}

func (c pqConnection) transaction(work func() error) error {
	tx, err := c.BeginTx(ctx, nil)
	must(err)
	if err := work(); err != nil {
		must(tx.Rollback())
		return err
	}
	return tx.Commit()
}

func told(err error) (state, detail, hint string) {
	var told *pq.Error
	if errors.As(err, &told) {
		return string(told.Code), told.Detail, told.Hint
	}
	return
}

var own = []scenario{
	{"batch", func() string {
		c := leader()
		takeover("asleep")
		return refused(c.try(write("lost") + "; " + slow() + "; " + write("lost")))
	}},
	{"copy", func() string {
		c := leader().(pqConnection)
		tx, err := c.BeginTx(ctx, nil)
		must(err)
		copy, err := tx.Prepare(pq.CopyIn("jobs", "scenario", "what"))
		must(err)
		_, err = copy.Exec("copy", "lost")
		must(err)
		takeover()
		if _, err := copy.Exec("copy", "lost"); err != nil {
			return refused(err)
		}
		_, err = copy.Exec()
		return refused(err)
	}},
	{"pool", func() string {
		db := database("", "")
		db.SetMaxOpenConns(2)
		defer db.Close()
		return afterTakeover(2, func(token, what string) error {
			tx, err := db.Begin()
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if _, err := tx.Exec("SET LOCAL fencing.token = " + token); err != nil {
				return err
			}
			if _, err := tx.Exec("INSERT INTO jobs VALUES ('pool', $1)", what); err != nil {
				return err
			}
			return tx.Commit()
		})
	}},
	{"prepared", func() string {
		prepare := func(c connection) *sql.Stmt {
			insert, err := c.(pqConnection).PrepareContext(ctx, "INSERT INTO jobs VALUES ('prepared', $1)")
			must(err)
			return insert
		}
		c := leader()
		insert := prepare(c)
		token := takeover()
		_, err := insert.Exec("lost")
		refused(err)
		if c.try("SET fencing.token = "+token) != nil {
			c = connect(token)
			insert = prepare(c)
		}
		for range [2]int{} {
			_, err := insert.Exec("kept")
			must(err)
		}
		return "ok"
	}},
	// A context that ends: lib/pq sends a cancel request, and closes the connection.
	{"cancel", func() string {
		c := leader().(pqConnection)
		limited, cancel := seconds(1)
		defer cancel()
		_, err := c.ExecContext(limited, slow())
		state, _, _ := told(err)
		check(state == "57014")
		return "ok"
	}},
	{"notify", func() string {
		listener := pq.NewListener(text("", ""), time.Second, time.Second, nil)
		defer listener.Close()
		must(listener.Listen("jobs"))
		run(leader(), "NOTIFY jobs, 'done'")
		select {
		case note := <-listener.Notify:
			check(note.Extra == "done")
		case <-time.After(5 * time.Second):
			panic("nothing came")
		}
		return "ok"
	}},
	{"binary", func() string {
		leader()
		db := database("", "&binary_parameters=yes")
		defer db.Close()
		var bytes []byte
		must(db.QueryRow("SELECT $1::bytea", []byte{0, 255}).Scan(&bytes))
		check(string(bytes) == "\x00\xff")
		return "ok"
	}},
}

func main() {
	suite("lib/pq 1.10", driver{open, told}, own, "autocommit", "objects", "cursor", "attrs")
}
