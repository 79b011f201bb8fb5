package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// service is a limiter run by the serve verb.
type service struct {
	nats, http string
	*invocation
	stop func()
}

// serve starts a service on free ports in a new folder, and stops it when the test ends.
func serve(t *testing.T, args ...string) *service {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // also of one that is never ready
	s := &service{invocation: &invocation{ctx: ctx}}
	ended := s.start(t, `"msg":"ready"`, append([]string{"--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", t.TempDir(),
		"--log-format", "json"}, args...)...)
	s.stop = func() { cancel(); <-ended }
	t.Cleanup(s.stop)
	for line := range strings.Lines(s.err.String()) {
		var l struct{ Msg, NATS, HTTP string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "ready" {
			s.nats, s.http = l.NATS, l.HTTP
		}
	}
	return s
}

func (s *service) limiter(t *testing.T, args string) *invocation {
	t.Helper()
	return limiter(t, append(strings.Fields(args), "--nats-url", s.nats)...)
}

// TestService runs the verbs against the real service, as a person would type them.
func TestService(t *testing.T) {
	s := serve(t)
	const consume = "consume api:user:1 --limit 2 --window 1h --algorithm fixed_window"
	s.limiter(t, "check api:user:1 --limit 2 --window 1h --algorithm fixed_window").want(t, exitDone, "allowed\n", "")
	s.limiter(t, consume).want(t, exitDone, "2/1h", "")
	s.limiter(t, consume).want(t, exitDone, "allowed\n", "")
	s.limiter(t, consume).want(t, exitDenied, "denied: ", "")
	s.limiter(t, consume+" --json").want(t, exitDenied, `"allowed":false`, "")
	s.limiter(t, "refund api:user:1 --limit 2 --window 1h --algorithm fixed_window").want(t, exitDone, "2/1h", "")
	s.limiter(t, consume).want(t, exitDone, "allowed\n", "")
	s.limiter(t, "record api:user:2 --limit 2 --window 1h --cost 5").want(t, exitDenied, "past the limit: 5 of 2 used in 1h\nKEY ", "")
	s.limiter(t, "record api:user:2 --limit 2 --window 1h").want(t, exitDenied, " charged, past the limit\n", "")
	s.limiter(t, "consume k --limit 2 --window 1x").want(t, exitUsage, "", "400 invalid_window")
	s.limiter(t, "consume k --limit 2000000000 --window 1h").want(t, exitUsage, "", "400 invalid_limit")
	s.limiter(t, "consume k --limit 2 --window 1h --burst -1").want(t, exitUsage, "", "400 invalid_burst")
	s.limiter(t, "consume k --limit 2 --window day --timezone Mars/Base").want(t, exitUsage, "", "400 invalid_timezone")
	s.limiter(t, "consume -a =x").want(t, exitUsage, "", "400 invalid_attributes")
	s.limiter(t, "consume --request x").want(t, exitUsage, "", "400 invalid_json")
	s.limiter(t, "consume --policy none").want(t, exitError, "", "404 unknown_policy")

	s.limiter(t, "show api:user:1").want(t, exitDone, "1h    2/1h   2     0", "")
	s.limiter(t, "show nobody").want(t, exitDone, "nobody: nothing used", "")
	s.limiter(t, "list --prefix api:").want(t, exitDone, "api:user:2", "")
	s.limiter(t, "list --prefix nobody").want(t, exitDone, "no counters\n", "")
	s.limiter(t, "reset --prefix api: --dry-run").want(t, exitDone, "would reset 2 counters\n", "")
	s.limiter(t, "reset api:user:1").want(t, exitDone, "reset 1 counter\n", "")
	s.limiter(t, consume).want(t, exitDone, "allowed\n", "")
	s.limiter(t, "reset --prefix api: --yes").want(t, exitDone, "reset 2 counters\n", "")

	limiter(t, "healthcheck", "--http", s.http).want(t, exitDone, "ready\n", "")
	s.stop()
	if s.status != exitDone {
		t.Errorf("serve ended with status %d: %s", s.status, s.err.String())
	}
	limiter(t, "healthcheck", "--http", s.http).want(t, exitError, "", "healthcheck: ")
}

// TestWrongPathsNameTheirFlags: a path that cannot be used is wrong usage, even if only the start finds out.
func TestWrongPathsNameTheirFlags(t *testing.T) {
	t.Parallel()
	file := written(t, "limits.yaml", policyFile)
	none := filepath.Join(t.TempDir(), "none.yaml")
	for _, tt := range []struct{ flag, path, message string }{
		{"--data-dir", file, "limiter: invalid settings: --data-dir: create the data folder: mkdir " + file},
		{"--data-dir", filepath.Join(file, "data"), "limiter: invalid settings: --data-dir: create the data folder: mkdir " + file},
		{"--policies", none, "limiter: invalid settings: --policies: read policies: open " + none},
		{"--policies", filepath.Dir(file), "limiter: invalid settings: --policies: read policies: read "},
		{"--alerts", none, "limiter: invalid settings: --alerts: read alerts: open " + none},
	} {
		limiter(t, "--nats-listen", "127.0.0.1:0", "--http", "off", "--data-dir", t.TempDir(), tt.flag, tt.path).want(t, exitUsage, "", tt.message)
	}
}

func TestServiceEvents(t *testing.T) {
	s := serve(t)
	i := new(invocation)
	ended := i.start(t, "watching", "watch", "--count", "2", "--json", "--nats-url", s.nats)
	for range 2 {
		s.limiter(t, "consume api:user:9 --limit 1 --window 1h")
	}
	<-ended
	i.want(t, exitDone, "limits.warning", "watching")
	i.want(t, exitDone, "limits.exceeded", "watching")
	for line := range strings.Lines(i.out.String()) {
		if e, err := limits.ParseEvent([]byte(line)); err != nil || e.Subject != "api:user:9" {
			t.Errorf("event %s: %v", line, err)
		}
	}
}

// TestWatchSaysThatNobodyIsThere, once for each that is missing, and shows events as soon as they come.
func TestWatchSaysThatNobodyIsThere(t *testing.T) {
	t.Parallel()
	const limiterGone, alerterGone = "limiter: no limiter is listening on nats://", "limiter: no alerter is listening on nats://"
	for types, want := range map[string][]string{
		"limits.warning,limits.exceeded":               {limiterGone},
		"alerts.raised,alerts.resolved":                {alerterGone},
		"limits.warning,alerts.raised,limits.exceeded": {limiterGone, alerterGone},
	} {
		t.Run(types, func(t *testing.T) {
			t.Parallel()
			url := testenv.NATS(t).ClientURL()
			i := new(invocation)
			ended := i.start(t, want[len(want)-1], "watch", "--count", "1", "--type", types, "--nats-url", url)
			eventType, _, _ := strings.Cut(types, ",")
			if err := testenv.Connect(t, url).Publish(eventType, []byte(`{"specversion":"1.0","id":"1","type":"other"}`)); err != nil {
				t.Fatal(err)
			}
			<-ended
			i.want(t, exitDone, "other", "watching ")
			for _, line := range want {
				i.want(t, exitDone, "other", line+strings.TrimPrefix(url, "nats://")+"; the watch goes on")
			}
			if n := strings.Count(i.err.String(), " is listening"); n != len(want) {
				t.Errorf("said so %d times, want %d: %s", n, len(want), i.err.String())
			}
		})
	}
}

// TestWatchSaysNothingOfALimiterThatIsThere, or that may be: a store that is down says nothing about the limiter, and not
// everybody who may see events may ask.
func TestWatchSaysNothingOfALimiterThatIsThere(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(string) *nats.Msg{
		"healthy": text(`{"counters":[]}`),
		"store down": func(string) *nats.Msg {
			return &nats.Msg{Data: []byte(`{"error":{"code":"unavailable","message":"the store cannot be reached"}}`),
				Header: nats.Header{"Nats-Service-Error-Code": {"503"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 1)
			url := respond(t, limits.SubjectStatus, func(request string) *nats.Msg {
				asked <- struct{}{}
				return answer(request)
			})
			i := new(invocation)
			ended := i.start(t, "watching", "watch", "--count", "1", "--nats-url", url)
			select {
			case <-asked:
			case <-time.After(time.Minute):
				t.Error("it does not ask whether a limiter is there")
			}
			if err := testenv.Connect(t, url).Publish(limits.EventWarning, []byte(`{"specversion":"1.0","id":"1","type":"other"}`)); err != nil {
				t.Fatal(err)
			}
			<-ended
			if got := i.err.String(); got != "watching limits.warning and limits.exceeded\n" {
				t.Errorf("it says %q", got)
			}
		})
	}
}

// The roles of deploy/nats.conf: a missing permission is reported as such, and not only as a missing answer.
func TestPermissionErrorsAreReported(t *testing.T) {
	conf, err := os.ReadFile("../../deploy/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	var passwords strings.Builder
	for _, role := range []string{"WORKER", "ALERTER", "CHECK", "ADMIN", "STREAMS", "EVENTS"} {
		fmt.Fprintf(&passwords, "%s_PASSWORD: secret\n", role)
	}
	t.Setenv("NATS_URL", "nats://check:secret@"+testenv.NATSConfig(t, passwords.String()+string(conf)).Addr().String())
	limiter(t, "show", "k", "--timeout", "200ms").want(t, exitError, "", `Permissions Violation for Subscription to "_INBOX.`)
	limiter(t, "consume", "k", "--limit", "5", "--window", "1m", "--timeout", "200ms").want(t, exitError, "", `--nats-inbox-prefix (NATS_INBOX_PREFIX)`)
	t.Setenv("NATS_INBOX_PREFIX", "_INBOX_check")
	for _, verb := range []string{"list", "reset k", "policies explain ../../examples/primitive/policies.yaml --overrides"} {
		i := &invocation{ctx: t.Context()} // whose deadline would go before --timeout
		i.run(t, append(strings.Fields(verb), "--timeout", "200ms")...).want(t, exitError, "",
			`no answer: context deadline exceeded: nats: permissions violation: Permissions Violation for Publish to "limits.admin.`)
	}
	w := limiter(t, "watch")
	w.want(t, exitError, "", `: nats: permissions violation: Permissions Violation for Subscription to "limits.`)
	if strings.Contains(w.err.String(), "--nats-inbox-prefix") {
		t.Errorf("events need no inbox: %s", w.err.String())
	}
}

// A watch ends when its user loses the permission to see events.
func TestWatchEndsWhenPermissionIsLost(t *testing.T) {
	allow := func(subscribe string) *server.Options {
		return &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, Users: []*server.User{{
			Username: "u", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{subscribe}}}}}}
	}
	s, err := server.NewServer(allow("limits.>"))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS server not ready")
	}
	i := new(invocation)
	ended := i.start(t, "watching", "watch", "--nats-url", "nats://u:p@"+s.Addr().String())
	if err := s.ReloadOptions(allow("limits.warning")); err != nil {
		t.Fatal(err)
	}
	<-ended
	i.want(t, exitError, "", `Subscription to "limits.exceeded"`)
}

// TestWatchReportsDisconnects: otherwise it would look like a time without events.
func TestWatchReportsDisconnects(t *testing.T) {
	t.Parallel()
	s := serveNATS(t, server.RANDOM_PORT, "p")
	port := s.Addr().(*net.TCPAddr).Port
	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	back := make(chan struct{})
	i := &invocation{ctx: ctx}
	url := "nats://u:p@" + s.Addr().String()
	respondAt(t, url, limits.SubjectStatus, text(`{"counters":[]}`))
	ended := i.start(t, "watching", "watch", "--nats-url", url)
	connected := sync.OnceFunc(func() { close(back) })
	i.err.listen(func(text string) {
		if strings.Contains(text, "reconnected") {
			connected()
		}
	})
	s.Shutdown()
	serveNATS(t, port, "p")
	select {
	case <-back:
	case <-ended:
		t.Fatal("the watch has ended")
	}
	interrupt()
	<-ended
	want := "watching limits.warning and limits.exceeded\nlimiter: connection lost; events until it is back are not shown\n" +
		"limiter: reconnected\n"
	if i.status != exitDone || i.err.String() != want {
		t.Errorf("exit status %d, %q", i.status, i.err.String())
	}
}

// TestASignalEndsTheWaitForAServer that does not answer.
func TestASignalEndsTheWaitForAServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, verb := range []string{"show k --timeout 1h", "watch", "bench", "alerts preview"} {
		ctx, interrupt := context.WithCancel(t.Context())
		accepted := make(chan net.Conn)
		go func() {
			conn, _ := silent.Accept()
			accepted <- conn
		}()
		i := &invocation{ctx: ctx}
		ended := i.begin(t, append(strings.Fields(verb), "--nats-url", "nats://"+silent.Addr().String())...)
		conn := <-accepted
		interrupt()
		<-ended
		i.want(t, exitError, "", "limiter: interrupted while connecting to nats://127.0.0.1:")
		conn.Close()
	}
}

// TestForeignAnswerIsAnError, neither a denial nor a success, because scripts act on the exit status.
func TestForeignAnswerIsAnError(t *testing.T) {
	for _, c := range []struct{ subject, verb, lacks string }{
		{limits.SubjectConsume, "consume k --limit 1 --window 1m", "allowed"},
		{limits.SubjectRefund, "refund k --limit 1 --window 1m", "allowed"},
		{limits.SubjectSettle, "settle job --cost 1", "allowed"},
		{limits.SubjectReset, "reset k", "reset"},
		{limits.SubjectKeysRevoke, "keys revoke 4fJq01Zx", "key"},
		{limits.SubjectStatus, "show k", "counters"},
		{limits.SubjectKeysList, "keys list", "keys"},
		{limits.SubjectTop, "top", "rows"},
	} {
		for _, answer := range []string{"{}", "null", `{"other":1}`} {
			url := respond(t, c.subject, func(string) *nats.Msg { return text(answer)("") })
			limiter(t, append(strings.Fields(c.verb), "--nats-url", url)...).want(t, exitError, "",
				c.subject+`: read answer: field "`+c.lacks+`" is missing, so it is not from a limiter`)
		}
	}
}

func TestServiceBench(t *testing.T) {
	s := serve(t)
	_, r := bench(t, s.nats, "--keys", "2", "--limit", "2")
	if r.Allowed > 4 || r.Denied == 0 || len(r.Errors) != 0 {
		t.Errorf("result %+v", r)
	}
}
