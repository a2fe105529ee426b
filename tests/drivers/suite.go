// What the suites in Go share: the scenarios that are SQL only, and how a suite reports.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// How to do with a driver what all can do.
type driver struct {
	open func(token string) (connection, error)
	told func(error) (state, detail, hint string)
}

type connection interface {
	try(sql string) error
	transaction(func() error) error
}

type scenario struct {
	name string
	run  func() string
}

var (
	now string // the scenario that runs
	ctx = context.Background()
	by  driver
)

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

func run(c connection, sql string) { must(c.try(sql)) }

func connect(token string) connection {
	c, err := by.open(token)
	must(err)
	return c
}

// A connection that holds the token and has written.
func leader() connection {
	c := connect(takeover())
	run(c, write("kept"))
	return c
}

// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
func refused(err error) string {
	if err == nil {
		panic("nothing was refused")
	}
	state, _, _ := by.told(err)
	for _, code := range []string{"PF001", "PF002", "08007"} {
		if state == code {
			return code
		}
		if strings.Contains(err.Error(), code+": ") {
			return "(" + code + ")"
		}
	}
	for _, word := range []string{"clos", "EOF", "reset", "broken pipe", "bad connection"} {
		if strings.Contains(err.Error(), word) {
			return "lost"
		}
	}
	panic(err)
}

func local(c connection, token, what string) error {
	return c.transaction(func() error {
		if err := c.try("SET LOCAL fencing.token = " + token); err != nil {
			return err
		}
		return c.try(write(what))
	})
}

// Declares after connecting, and writes.
func follow(c connection) string {
	run(c, "SET fencing.token = "+takeover())
	run(c, write("kept"))
	return "ok"
}

// In one pool, the first transactions with the new token fail at most once for each of its connections.
func afterTakeover(times int, transaction func(token, what string) error) string {
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

var common = []scenario{
	// In transaction mode nothing that the driver sets for itself keeps the server connection.
	{"shares", func() string {
		leader()
		if takeover("keeps") != "0" {
			return "keeps"
		}
		return "ok"
	}},
	{"string", func() string { leader(); return "ok" }},
	{"set", func() string { return follow(connect("")) }},
	{"local", func() string {
		c := connect("")
		must(local(c, takeover(), "kept"))
		check(refused(c.try(write("lost"))) == "PF002")
		return "ok"
	}},
	{"old-string", func() string {
		old := takeover()
		leader()
		_, err := by.open(old)
		return refused(err)
	}},
	{"old-set", func() string {
		old, token, c := takeover(), takeover(), connect("")
		cell := refused(c.try("SET fencing.token = " + old))
		refused(c.try(write("lost")))
		run(c, "SET fencing.token = "+token)
		run(c, write("kept"))
		return cell
	}},
	{"old-local", func() string {
		old, token, c := takeover(), takeover(), connect("")
		cell := refused(local(c, old, "lost"))
		must(local(c, token, "kept"))
		return cell
	}},
	{"idle", func() string {
		c := leader()
		takeover()
		return refused(c.try(write("lost")))
	}},
	{"transaction", func() string {
		c := leader()
		return refused(c.transaction(func() error {
			run(c, write("lost"))
			takeover()
			return nil
		}))
	}},
	{"statement", func() string {
		c := leader()
		takeover("asleep")
		return refused(c.try(slow()))
	}},
	{"fields", func() string {
		old, c := takeover(), leader()
		state, detail, hint := by.told(c.try("SET fencing.token = " + old))
		check(state == "PF001")
		check(strings.HasPrefix(detail, "The mark of scope "))
		check(strings.HasPrefix(hint, "This process is no longer the leader. "))
		return "ok"
	}},
}

func seconds(n time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, n*time.Second)
}

// Runs the scenarios, or those that the command line names. The driver has nothing like those of `without`.
func suite(name string, of driver, own []scenario, without ...string) {
	by = of
	fmt.Println("version:", name)
	for _, missing := range without {
		own = append(own, scenario{missing, func() string { return "n/a " + name + " has none" }})
	}
	for _, scenario := range append(common, own...) {
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
