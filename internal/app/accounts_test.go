package app

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// accountsServer starts a NATS server with the users of deploy/nats.conf in an account, which exports what docs/operations.md
// says, and a user "app" in another one, which imports all of it.
func accountsServer(t *testing.T) (addr string) {
	t.Helper()
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	exports := regexp.MustCompile(`(?s)exports: \[.*?\]`).FindString(string(docs))
	imports := regexp.MustCompile(`(service|stream): ([a-z.]+)`).ReplaceAllString(exports, "$1: { account: LIMITS, subject: $2 }")
	_, users, found := strings.Cut(rolesConfig(t), "\nauthorization {")
	if !found || exports == "" {
		t.Fatal("the file or the documentation has changed")
	}
	return testenv.NATSConfig(t, "jetstream {}\naccounts {\nAPP { users: [{ user: app, password: secret }], "+
		strings.Replace(imports, "exports", "imports", 1)+" }\nLIMITS { jetstream: enabled, "+exports+users+"}").Addr().String()
}

// TestCallersInAnotherAccount: they are answered, and have no way to the events, to administration and to what workers tell
// each other.
func TestCallersInAnotherAccount(t *testing.T) {
	t.Parallel()
	at := &natsRoles{addr: accountsServer(t)}
	o := options(t)
	o.NATSURL, o.NATSInboxPrefix = "nats://worker:secret@"+at.addr, "_INBOX_worker"
	o.DatabaseURL = testenv.Postgres(t)
	log := running(t, Run, o).log
	app, worker := at.as(t, "app"), at.as(t, "worker")
	heard := worker.hears(t, "limits.>")
	worker.flush(t)
	const forged = `{"key":"forged"}`
	for _, subject := range []string{limits.EventExceeded, limits.EventWarning, limits.EventReport, limits.SubjectReset,
		"limits.internal.forget"} {
		if err := app.Publish(subject, []byte(forged)); err != nil {
			t.Fatal(err)
		}
	}
	app.flush(t)
	events := app.hears(t, limits.EventExceeded)
	app.flush(t)
	const two = `{"key":"api:user:7","limit":2,"window":"1h"%s}`
	app.asks(t, limits.SubjectConsume, fmt.Sprintf(two, `,"cost":2,"id":"job"`), `"allowed":true`)
	app.asks(t, limits.SubjectConsume, fmt.Sprintf(two, ""), `"allowed":false`)
	app.asks(t, limits.SubjectVerify, `{"apiKey":"lim_x"}`, `"valid":false`)
	if m, err := events.NextMsg(patience); err != nil || !strings.Contains(string(m.Data), "api:user:7") {
		t.Errorf("%v, %+v", err, m)
	}
	for event := false; !event; {
		m, err := heard.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) == forged {
			t.Errorf("the other account published %s", m.Subject)
		}
		event = m.Subject == limits.EventExceeded
	}
	if text := log.String(); strings.Contains(strings.ToLower(text), "violation") {
		t.Errorf("the worker was refused something:\n%s", text)
	}
}
