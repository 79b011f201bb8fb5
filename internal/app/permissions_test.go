package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// roles starts a NATS server with the permissions of deploy/nats.conf, and a limiter and an alerter as its users.
func roles(t *testing.T) (at *natsRoles) {
	t.Helper()
	at = &natsRoles{addr: rolesServer(t)}
	o := options(t)
	o.NATSURL, o.NATSInboxPrefix = "nats://worker:secret@"+at.addr, "_INBOX_worker"
	o.DatabaseURL = testenv.Postgres(t)
	at.log = running(t, Run, o).log
	o.NATSURL, o.NATSInboxPrefix = "nats://alerter:secret@"+at.addr, "_INBOX_alerter"
	o.Alerts = writeFile(t, "rules:\n  - {name: all, threshold: {denials: 1}, channels: [nats]}\n")
	at.alerterLog = running(t, RunAlerter, o).log
	return at
}

// rolesServer starts a NATS server with deploy/nats.conf, and returns its address.
func rolesServer(t *testing.T) string {
	t.Helper()
	return testenv.NATSConfig(t, rolesConfig(t)).Addr().String()
}

// rolesConfig returns the text of deploy/nats.conf, where all passwords are "secret".
func rolesConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\$[A-Z]+_PASSWORD`).ReplaceAllString(string(text), "secret")
}

type natsRoles struct {
	addr            string
	log, alerterLog *watcher
}

// user is a connection, and the errors of the server about its permissions.
type user struct {
	*nats.Conn
	refused chan error
}

func (r *natsRoles) as(t *testing.T, name string) *user {
	t.Helper()
	u := &user{refused: make(chan error, 100)}
	var err error
	u.Conn, err = nats.Connect("nats://"+r.addr, nats.UserInfo(name, "secret"), nats.CustomInboxPrefix("_INBOX_"+name),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// asks sends a request whose answer must contain a text.
func (u *user) asks(t *testing.T, subject, body, want string) {
	t.Helper()
	m, err := u.Request(subject, []byte(body), patience)
	if err != nil {
		t.Fatalf("%s %s: %v", subject, body, err)
	}
	if code := m.Header.Get("Nats-Service-Error-Code"); code != "" || !strings.Contains(string(m.Data), want) {
		t.Errorf("%s %s: %s %s, want %s", subject, body, code, m.Data, want)
	}
}

// asksUntil repeats a request until its answer contains a text.
func (u *user) asksUntil(t *testing.T, subject, body, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		m, err := u.Request(subject, []byte(body), patience)
		if err != nil {
			t.Fatalf("%s %s: %v", subject, body, err)
		}
		if strings.Contains(string(m.Data), want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s %s: %s, want %s", subject, body, m.Data, want)
		}
	}
}

// hears subscribes to a subject. The server may refuse that.
func (u *user) hears(t *testing.T, subject string) *nats.Subscription {
	t.Helper()
	sub, err := u.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func (u *user) flush(t *testing.T) {
	t.Helper()
	if err := u.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
}

// isRefused checks that the server refuses the last operation.
func (u *user) isRefused(t *testing.T, what string) {
	t.Helper()
	u.flush(t)
	// The server sent the refusal before the answer to the flush, so the handler gets it.
	select {
	case err := <-u.refused:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(patience):
		t.Fatalf("%s was not refused", what)
	}
}

// holdsNothingRefused checks that nothing was refused so far.
func (u *user) holdsNothingRefused(t *testing.T) {
	t.Helper()
	u.flush(t)
	if err := u.LastError(); err != nil {
		t.Errorf("refused: %v", err)
	}
}

func TestNATSRoles(t *testing.T) {
	t.Parallel()
	at := roles(t)
	check, admin, events, alerter := at.as(t, "check"), at.as(t, "admin"), at.as(t, "events"), at.as(t, "alerter")
	t.Run("a server may only check", func(t *testing.T) { checkRole(t, check) })
	t.Run("answers go only to inboxes", func(t *testing.T) { answersOfOthers(t, check, admin) })
	t.Run("an administrator", func(t *testing.T) { adminRole(t, admin) })
	t.Run("a reader of events", func(t *testing.T) { eventsRole(t, events) })
	t.Run("an alerter", func(t *testing.T) { alerterRole(t, alerter) })
	t.Run("a denial becomes an alert", func(t *testing.T) { alertOfADenial(t, check, events) })
	for who, log := range map[string]*watcher{"worker": at.log, "alerter": at.alerterLog} {
		if text := log.String(); strings.Contains(strings.ToLower(text), "violation") {
			t.Errorf("the %s was refused something:\n%s", who, text)
		}
	}
}

func checkRole(t *testing.T, check *user) {
	const two = `{"key":"api:user:7","limit":2,"window":"1h"%s}`
	check.asks(t, limits.SubjectConsume, fmt.Sprintf(two, `,"cost":2,"id":"job"`), `"allowed":true`)
	check.asks(t, limits.SubjectConsume, fmt.Sprintf(two, ""), `"allowed":false`)
	check.asks(t, limits.SubjectCheck, fmt.Sprintf(two, ""), `"allowed":false`)
	check.asks(t, limits.SubjectRecord, fmt.Sprintf(two, ""), `"remaining":0`)
	check.asks(t, limits.SubjectRefund, fmt.Sprintf(two, ""), `"remaining":`)
	check.asks(t, limits.SubjectSettle, `{"id":"job","cost":1}`, `"allowed":true`)
	check.asks(t, limits.SubjectStatus, `{"key":"api:user:7"}`, `"counters":[{`)
	check.asks(t, limits.SubjectVerify, `{"apiKey":"lim_x"}`, `"valid":false`)
	_ = check.Publish(limits.SubjectUsage, []byte(`{"key":"k","endpoint":"/","method":"GET","status":200,"millis":1}`))
	check.holdsNothingRefused(t)
	for _, subject := range []string{limits.SubjectReset, limits.SubjectKeysCreate, limits.EventExceeded, "limits.internal.forget",
		"alerts.raised", "$JS.API.STREAM.DELETE.LIMITS", "_INBOX_admin.x"} {
		_ = check.Publish(subject, []byte(`{"key":"api:user:7"}`))
		check.isRefused(t, subject)
	}
	for _, subject := range []string{"_INBOX_admin.>", "_INBOX.>", "limits.verify", "limits.exceeded", ">"} {
		check.hears(t, subject)
		check.isRefused(t, subject)
	}
}

// answersOfOthers has a client choose reply subjects of others.
func answersOfOthers(t *testing.T, check, admin *user) {
	inbox := check.hears(t, "_INBOX_check.mine")
	forged := admin.hears(t, "alerts.>")
	admin.flush(t)
	for _, reply := range []string{"alerts.raised", "limits.internal.forget", "$JS.API.STREAM.PURGE.LIMITS", "_INBOX_check.mine"} {
		if err := check.PublishRequest(limits.SubjectCheck, reply, []byte(`{"key":"k","limit":1,"window":"1h"}`)); err != nil {
			t.Fatal(err)
		}
	}
	// The worker handles requests of one connection in order, so the other answers would come before the last one.
	if _, err := inbox.NextMsg(patience); err != nil {
		t.Fatal(err)
	}
	admin.flush(t)
	// A real alert of the service may come at any time.
	for n, _, _ := forged.Pending(); n > 0; n-- {
		m, err := forged.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), `"allowed"`) {
			t.Errorf("an answer came as an event: %s", m.Data)
		}
	}
}

func adminRole(t *testing.T, admin *user) {
	admin.asks(t, limits.SubjectList, `{}`, `api:user:7`)
	admin.asks(t, limits.SubjectTop, `{}`, `"rows"`)
	admin.asks(t, limits.SubjectKeysCreate, `{"user":"7","name":"n"}`, `"apiKey":"lim_`)
	admin.asks(t, limits.SubjectJobsRun, `{"job":"report"}`, `"outcome":"done"`)
	admin.asks(t, limits.SubjectReset, `{"key":"api:user:7"}`, `"reset":1`)
	admin.asks(t, "$SRV.PING.limits", ``, `"name":"limits"`)
	admin.asksUntil(t, "$JS.API.STREAM.MSG.GET.LIMITS", `{"last_by_subj":"limits.warning"}`, `"message":`) // the relay may be publishing it
	readsOnce(t, admin)
	admin.holdsNothingRefused(t)
	admin.hears(t, "_INBOX_check.>")
	admin.isRefused(t, "_INBOX_check.>")
	_ = admin.Publish("$JS.API.STREAM.DELETE.LIMITS", nil)
	admin.isRefused(t, "$JS.API.STREAM.DELETE.LIMITS")
}

// TestStreamOperatorPermissions does what the nats command line does for the commands of docs/operations.md.
func TestStreamOperatorPermissions(t *testing.T) {
	t.Parallel()
	at := &natsRoles{addr: rolesServer(t)}
	u := at.as(t, "streams")
	// Both are there before one is deleted: behind the deletion of the last one nats-server 2.15 removes the folder of all streams,
	// even if another one is being restored.
	configs := map[string]string{}
	for stream, subject := range map[string]string{limits.EventStream: limits.EventExceeded, limits.AlertStream: limits.EventAlertRaised} {
		configs[stream] = `{"name":"` + stream + `","subjects":["` + subject + `"],"storage":"file","max_bytes":%d}`
		u.asks(t, "$JS.API.STREAM.CREATE."+stream, fmt.Sprintf(configs[stream], 1<<20), `"did_create":true`)
	}
	for stream, config := range configs {
		u.asks(t, "$JS.API.STREAM.UPDATE."+stream, fmt.Sprintf(config, 2<<20), `"max_bytes":2097152`)
		state, snapshot := backUp(t, u, stream)
		u.asks(t, "$JS.API.STREAM.DELETE."+stream, ``, `"success":true`)
		restore(t, u, stream, fmt.Sprintf(`{"config":`+config+`,"state":%s}`, 2<<20, state), snapshot)
		u.asks(t, "$JS.API.STREAM.INFO."+stream, ``, `"max_bytes":2097152`)
	}
	u.asks(t, "$JS.API.STREAM.NAMES", ``, `"streams":["ALERTS","LIMITS"]`)
	u.asks(t, "$JS.API.INFO", ``, `"streams":2`)
	u.holdsNothingRefused(t)
	for _, subject := range []string{limits.EventExceeded, limits.SubjectReset, "$JS.API.STREAM.CREATE.other"} {
		_ = u.Publish(subject, nil)
		u.isRefused(t, subject)
	}
}

// backUp returns the state of a stream and its chunks. The server wants an acknowledgment of each chunk.
func backUp(t *testing.T, u *user, stream string) (state json.RawMessage, chunks [][]byte) {
	t.Helper()
	inbox := u.NewInbox()
	sub := u.hears(t, inbox)
	m, err := u.Request("$JS.API.STREAM.SNAPSHOT."+stream, []byte(`{"deliver_subject":"`+inbox+`"}`), patience)
	if err != nil {
		t.Fatal(err)
	}
	var begun struct{ State json.RawMessage }
	if err := json.Unmarshal(m.Data, &begun); err != nil || begun.State == nil {
		t.Fatalf("%s, %v", m.Data, err)
	}
	for {
		m, err := sub.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			return begun.State, chunks
		}
		chunks = append(chunks, m.Data)
		if m.Reply != "" {
			_ = m.Respond(nil)
		}
	}
}

func restore(t *testing.T, u *user, stream, request string, chunks [][]byte) {
	t.Helper()
	m, err := u.Request("$JS.API.STREAM.RESTORE."+stream, []byte(request), patience)
	if err != nil {
		t.Fatal(err)
	}
	var begun struct {
		To string `json:"deliver_subject"`
	}
	if err := json.Unmarshal(m.Data, &begun); err != nil || begun.To == "" {
		t.Fatalf("%s, %v", m.Data, err)
	}
	for _, chunk := range chunks {
		if _, err := u.Request(begun.To, chunk, patience); err != nil {
			t.Fatal(err)
		}
	}
	u.asks(t, begun.To, ``, `"created":`) // the end
}

// readsOnce reads an event as a preview does, by an ephemeral consumer.
func readsOnce(t *testing.T, u *user) {
	t.Helper()
	js := testenv.JetStream(t, u.Conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, limits.EventStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{limits.EventWarning, limits.EventExceeded}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(jetstream.FetchContext(ctx)); err != nil {
		t.Fatal(err)
	}
}

// consumer makes a durable consumer with the role's name, once with one filter and once with two, which need different rights,
// and takes an event by each.
func consumer(t *testing.T, u *user, name string) jetstream.JetStream {
	t.Helper()
	js := testenv.JetStream(t, u.Conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, filter := range [][]string{{limits.EventWarning}, {limits.EventWarning, limits.EventExceeded}} {
		c, err := js.CreateOrUpdateConsumer(ctx, limits.EventStream, jetstream.ConsumerConfig{Durable: name, FilterSubjects: filter,
			AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		m, err := c.Next(jetstream.FetchContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.DoubleAck(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Info(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return js
}

func eventsRole(t *testing.T, events *user) {
	consumer(t, events, "events")
	events.hears(t, limits.EventWarning)
	events.holdsNothingRefused(t)
	for _, subject := range []string{limits.EventExceeded, limits.SubjectConsume, "$JS.API.STREAM.DELETE.LIMITS"} {
		_ = events.Publish(subject, nil)
		events.isRefused(t, subject)
	}
}

// alerterRole tries what an alerter may not do. The alerter itself does what it may.
func alerterRole(t *testing.T, alerter *user) {
	alerter.asks(t, limits.SubjectConsume, `{"key":"limits.alerts:user:7","limit":20,"window":"1h","id":"event"}`, `"allowed":true`)
	alerter.asks(t, limits.SubjectSettle, `{"id":"event","cost":0}`, `"allowed":true`)
	alerter.holdsNothingRefused(t)
	for _, subject := range []string{limits.SubjectReset, limits.EventExceeded, limits.SubjectKeysCreate} {
		_ = alerter.Publish(subject, nil)
		alerter.isRefused(t, subject)
	}
	alerter.hears(t, "limits.verify")
	alerter.isRefused(t, "limits.verify")
}

// alertOfADenial tests the whole way: a server is denied, and a subscriber to the events gets the alert.
func alertOfADenial(t *testing.T, check, events *user) {
	raised := events.hears(t, limits.EventAlertRaised)
	events.flush(t)
	const one = `{"key":"alert:user:9","limit":1,"window":"1h","cost":2}`
	check.asks(t, limits.SubjectConsume, one, `"allowed":false`)
	for {
		m, err := raised.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), `"key":"alert:user:9"`) {
			return
		}
	}
}

// TestWorkerWithoutServicePermissionsDoesNotStart: otherwise it would log that it is ready, and answer nobody.
func TestWorkerWithoutServicePermissionsDoesNotStart(t *testing.T) {
	t.Parallel()
	server := testenv.NATSConfig(t, `jetstream {}
		authorization { users: [{ user: w, password: p, permissions: { subscribe: { deny: ["limits.consume"] } } }] }`)
	o := options(t)
	o.NATSURL = "nats://w:p@" + server.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	log := newWatcher()
	err := Run(ctx, o, slog.New(log))
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `Subscription to "limits.consume"`) ||
		!strings.Contains(err.Error(), "grant it to the NATS user") {
		t.Errorf("%v\n%s", err, log)
	}
}
