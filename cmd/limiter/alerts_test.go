package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

const oneAlert = `{"id":"A1","rule":"denials","severity":"warning","event":"limits.exceeded","user":"7","policy":"api","name":"minute",` +
	`"key":"api:user:7","window":"1m","limit":100,"denied":41,"events":3,"firstAt":1772362800000,"lastAt":1772362860000,` +
	`"raisedAt":1772362800000,"resolveAt":1772363460000,"notice":"held","reason":"throttle","noticeAt":1772362801000,` +
	`"channels":["nats","log"],"title":"7 is denied","text":"long"}`

func TestAlertsTables(t *testing.T) {
	for _, c := range []struct{ subject, args, reply, request, want string }{
		{limits.SubjectAlertsList, "list --user 7 --open", `{"alerts":[` + oneAlert + `],"next":"1772362800000/A1"}`,
			`{"user":"7","open":true,"max":50}`,
			"ID  RAISED               RULE     SEVERITY  USER  LIMIT       DENIED  STATE  TOLD\n" +
				"A1  2026-03-01 12:00:00  denials  warning   7     api 100/1m  41      open   held: throttle\n" +
				"more: --after=\"1772362800000/A1\"\n"},
		{limits.SubjectAlertsList, "list --rule r --policy p --after x --max 1", `{"alerts":[]}`,
			`{"rule":"r","policy":"p","after":"x","max":1}`, "no alerts\n"},
		{limits.SubjectAlertsShow, "show A1", `{"alert":` + oneAlert + `,"deliveries":[{"id":"A1.raised/log","channel":"log",` +
			`"type":"alerts.raised","title":"t","state":"sent","attempts":1,"createdAt":1,"endedAt":1772362800000}]}`, `{"id":"A1"}`,
			"7 is denied\nlong\n\n" +
				"ID        A1\nRule      denials, warning\nUser      7\nLimit     api 100/1m (minute of api:user:7)\n" +
				"Denied    41 in 3 events\nEvents    2026-03-01 12:00:00 to 2026-03-01 12:01:00\nRaised    2026-03-01 12:00:00\n" +
				"State     open\nTold      held: throttle 2026-03-01 12:00:01\nChannels  nats log\n\n" +
				"DELIVERY       STATE  TRIES  AT                   ERROR\nA1.raised/log  sent   1      2026-03-01 12:00:00  -\n"},
		{limits.SubjectAlertsSilence, "silence --user acme-* --for 2h --reason move --by ann",
			`{"silence":{"id":"S1","user":"acme-*","reason":"move","createdAt":1,"expiresAt":1772370000000}}`,
			`{"user":"acme-*","for":7200000,"reason":"move","by":"ann"}`,
			"silence S1 until 2026-03-01 14:00:00; end it with: limiter alerts unsilence S1\n"},
		{limits.SubjectAlertsUnsilence, "unsilence S1", `{"silence":{"id":"S1","reason":"r","createdAt":1,"expiresAt":2}}`, `{"id":"S1"}`,
			"ended silence S1\n"},
		{limits.SubjectAlertsSilences, "silences --all", `{"silences":[{"id":"S1","rule":"*","reason":"move","createdAt":1,"expiresAt":1772362799000}]}`,
			`{"all":true,"max":50}`,
			"ID  RULE  POLICY  KEY  USER  UNTIL                       BY  REASON\n" +
				"S1  *     -       -    -     2026-03-01 11:59:59 (over)  -   move\n"},
		{limits.SubjectAlertsSilences, "silences", `{"silences":[]}`, `{"max":1000}`, "no silences\n"},
		{limits.SubjectAlertsSilences, "silences --max 1 --after 2/S2", `{"silences":[{"id":"S1","rule":"*","reason":"move","createdAt":1,"expiresAt":1772362799000}],"next":"1/S1"}`,
			`{"after":"2/S2","max":1}`,
			"ID  RULE  POLICY  KEY  USER  UNTIL                       BY  REASON\n" +
				"S1  *     -       -    -     2026-03-01 11:59:59 (over)  -   move\n" +
				"more: --after=\"1/S1\"\n"},
		{limits.SubjectAlertsChannels, "channels", `{"channels":[{"name":"pager","kind":"webhook","host":"h.example","waiting":3,"breaker":"open",` +
			`"disabledAt":1772362800000,"disabledReason":"410 Gone"},{"name":"chat","kind":"slack","host":"c.example","waiting":2,"breaker":"closed",` +
			`"pausedUntil":1772363400000},{"name":"ops","kind":"webhook","host":"o.example","waiting":1,"breaker":"closed",` +
			`"lastError":"post to o.example: it answered 500"},{"name":"log","kind":"log","waiting":0}]}`, `{}`,
			"CHANNEL  KIND     HOST       WAITING  BREAKER  STATE\n" +
				"pager    webhook  h.example  3        open     disabled 2026-03-01 12:00:00: 410 Gone\n" +
				"chat     slack    c.example  2        closed   paused until 2026-03-01 12:10:00 by its target\n" +
				"ops      webhook  o.example  1        closed   fails: post to o.example: it answered 500\n" +
				"log      log      -          0        -        in use\n"},
		{limits.SubjectAlertsDead, "dead --channel c", `{"deliveries":[],"poison":[{"sequence":5,"subject":"limits.warning","reason":"bad",` +
			`"data":"/3s=","at":1772362800000}],"next":"poison:1772362800000/5"}`, `{"channel":"c","max":50}`,
			"no dead letters\n\nmessages that could not be processed:\nSEQUENCE  SUBJECT         AT                   REASON  DATA\n" +
				"5         limits.warning  2026-03-01 12:00:00  bad     \"\\xff{\"\nmore: --after=\"poison:1772362800000/5\"\n"},
		{limits.SubjectAlertsReplay, "replay --channel c", `{"replayed":2}`, `{"channel":"c"}`, "replayed 2 dead letters\n"},
		{limits.SubjectAlertsReplay, "replay --all --yes", `{"replayed":1}`, `{"all":true}`, "replayed 1 dead letter\n"},
		{limits.SubjectAlertsReplay, "replay A1.raised/log --json", `{"replayed":1}`, `{"id":"A1.raised/log"}`, "{\"replayed\":1}\n"},
	} {
		got := ""
		url := respond(t, c.subject, func(request string) *nats.Msg { got = request; return &nats.Msg{Data: []byte(c.reply)} })
		t.Setenv("USER", "")
		i := limiter(t, append(strings.Fields("alerts "+c.args), "--nats-url", url)...)
		if i.status != exitDone || i.out.String() != c.want || i.err.String() != "" {
			t.Errorf("%s: status %d, err %q\n got %s\nwant %s", c.args, i.status, i.err.String(), i.out.String(), c.want)
		}
		if got != c.request {
			t.Errorf("%s asks %s, want %s", c.args, got, c.request)
		}
	}
}

func TestReplayAllAsksForConfirmation(t *testing.T) {
	url := respond(t, limits.SubjectAlertsReplay, text(`{"replayed":4}`))
	for answer, want := range map[string]string{"y\n": "replayed 4 dead letters\n", "n\n": "", "": ""} {
		i := &invocation{stdin: answer, tty: true}
		i.run(t, "alerts", "replay", "--all", "--nats-url", url)
		if i.out.String() != want || (i.status == exitDone) != (want != "") {
			t.Errorf("%q: status %d, out %q, err %q", answer, i.status, i.out.String(), i.err.String())
		}
	}
}

// TestTestSendWaitsForDeliveries: the channels are done at the third request.
func TestTestSendWaitsForDeliveries(t *testing.T) {
	s := testenv.NATS(t)
	nc := testenv.Connect(t, s.ClientURL())
	asked := 0
	outcome := `"state":"sent","attempts":1`
	for subject, reply := range map[string]func() string{
		limits.SubjectAlertsTest: func() string { asked = 0; return `{"id":"T1","channels":["log"]}` },
		limits.SubjectAlertsShow: func() string {
			state := `"state":"waiting","attempts":0`
			if asked++; asked > 2 {
				state = outcome
			}
			return `{"deliveries":[{"id":"T1.log/log","channel":"log","type":"alerts.test","title":"t",` + state + `,"createdAt":1}]}`
		},
	} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(reply())) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	send := func(more ...string) *invocation {
		return limiter(t, append([]string{"alerts", "test-send", "log", "--wait", "1m", "--nats-url", s.ClientURL()}, more...)...)
	}
	send().want(t, exitDone, "T1.log/log  sent", "")
	send("--json").want(t, exitDone, `"state": "sent"`, "")
	outcome = `"state":"waiting","attempts":1,"error":"500 Internal Server Error"`
	failed := send()
	failed.want(t, exitError, "500 Internal Server Error", "test T1: not delivered to log; see: limiter alerts show T1")
}

// TestTestSendExplainsUntriedDeliveries: a failing channel tries nothing for a while, and its waiting deliveries have no error yet.
func TestTestSendExplainsUntriedDeliveries(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	respondAt(t, url, limits.SubjectAlertsTest, text(`{"id":"T1","channels":["ops","log"]}`))
	respondAt(t, url, limits.SubjectAlertsShow, text(`{"deliveries":[`+
		`{"id":"T1.ops/ops","channel":"ops","type":"alerts.test","title":"t","state":"waiting","attempts":0,"createdAt":1},`+
		`{"id":"T1.log/log","channel":"log","type":"alerts.test","title":"t","state":"waiting","attempts":0,"createdAt":1}]}`))
	respondAt(t, url, limits.SubjectAlertsChannels, text(`{"channels":[{"name":"ops","kind":"webhook","host":"10.0.0.1","waiting":2,`+
		`"breaker":"open","lastError":"refused: 10.0.0.1"},{"name":"log","kind":"log","waiting":1}]}`))
	i := limiter(t, "alerts", "test-send", "--wait", "0s", "--nats-url", url)
	i.want(t, exitError, "not tried yet: channel fails: refused: 10.0.0.1\n", "test T1: not delivered to ops, log")
	i.want(t, exitError, "not tried yet\n", "test T1: not delivered to ops, log")
}

// TestInterruptedTestSendReportsItsID: the test is sent in any case, and its id is needed to look at the result.
func TestInterruptedTestSendReportsItsID(t *testing.T) {
	url := testenv.NATS(t).ClientURL()
	asked := make(chan struct{}, 1000)
	respondAt(t, url, limits.SubjectAlertsTest, text(`{"id":"T1","channels":["log","ops"]}`))
	respondAt(t, url, limits.SubjectAlertsShow, func(string) *nats.Msg {
		asked <- struct{}{}
		return text(`{"deliveries":[{"id":"T1.log/log","channel":"log","type":"alerts.test","title":"t","state":"sent","attempts":1,"createdAt":1},` +
			`{"id":"T1.ops/ops","channel":"ops","type":"alerts.test","title":"t","state":"waiting","attempts":0,"createdAt":1}]}`)("")
	})
	for _, more := range [][]string{nil, {"--json"}} {
		ctx, interrupt := context.WithCancel(t.Context())
		i := &invocation{ctx: ctx}
		ended := i.begin(t, append([]string{"alerts", "test-send", "--wait", "1m", "--nats-url", url}, more...)...)
		for range 2 { // with the second question the answer to the first has been read
			<-asked
		}
		interrupt()
		<-ended
		i.want(t, exitError, "T1.ops/ops", "limiter: test T1 was sent: interrupted before every channel was tried; see: limiter alerts show T1\n")
		for len(asked) > 0 {
			<-asked
		}
	}
}

func TestWrongUsageOfAlerts(t *testing.T) {
	for args, message := range map[string]string{
		"alerts list --max 0":                             "--max: 0 is not between 1 and 200",
		"alerts dead --max 201":                           "--max: 201 is not between",
		"alerts silences --max 0":                         "--max: 0 is not between 1 and 1000",
		"alerts silences --max 1001":                      "--max: 1001 is not between",
		"alerts show":                                     "<id>",
		"alerts silence --for 1h --reason r":              "one of --rule, --policy, --key and --user is required",
		"alerts silence --user 7 --reason r":              "--for or --until is required",
		"alerts silence --user 7 --for 1h":                "--reason",
		"alerts silence --user 7 --for 367d --reason r":   "--for: a silence lasts at most 366 days",
		"alerts replay":                                   "one of ID, --channel and --all is required",
		"alerts replay x --all":                           "only one of ID, --channel and --all is allowed",
		"alerts replay --all":                             "pass --yes",
		"alerts test-send --wait=-1s":                     "--wait: -1s is below 0",
		"alerts preview --max 0":                          "--max: 0 is not between",
		"watch --type limits.consume":                     `--type: "limits.consume" is not one of limits.warning`,
		"alerts silence --user 7 --for 0h --reason again": "is not a duration above 0",
	} {
		limiter(t, strings.Fields(args)...).want(t, exitUsage, "", message)
	}
}

// pastEvents publishes denials of two users.
func pastEvents(t *testing.T) (url string) {
	t.Helper()
	s := testenv.NATS(t)
	nc := testenv.Connect(t, s.ClientURL())
	js := testenv.JetStream(t, nc)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: limits.EventStream, Subjects: []string{"limits.warning", "limits.exceeded"}}); err != nil {
		t.Fatal(err)
	}
	for n := range 30 {
		data, err := json.Marshal(limits.Exceeded{Key: fmt.Sprintf("api:%d:7", n), Name: "1m", Limit: 5, Window: "1m", Denied: 5, User: "7"})
		if err != nil {
			t.Fatal(err)
		}
		event := fmt.Sprintf(`{"specversion":"1.0","id":"e%d","type":"limits.exceeded","time":%q,"data":%s}`,
			n, time.Now().UTC().Format(time.RFC3339Nano), data)
		if _, err := js.Publish(t.Context(), limits.EventExceeded, []byte(event)); err != nil {
			t.Fatal(err)
		}
	}
	return s.ClientURL()
}

func TestPreviewOfTheBuiltInRule(t *testing.T) {
	url := pastEvents(t)
	preview := func(more ...string) *invocation {
		return limiter(t, append([]string{"alerts", "preview", "--nats-url", url}, more...)...)
	}
	i := preview()
	i.want(t, exitDone, "  7     30      20    10    150\n", "")
	i.want(t, exitDone, "30 matched by a rule: 30 alerts, 20 sent, 10 held for the digests of 1 user; 0 warnings held back", "")
	preview("--list").want(t, exitDone, "held: throttle", "")
	var p struct {
		Events, Sent, Held int
		Alerts             []limits.Alert
	}
	if err := json.Unmarshal([]byte(preview("--json").out.String()), &p); err != nil || p.Events != 30 || p.Sent != 20 || p.Held != 10 || len(p.Alerts) != 30 {
		t.Errorf("%+v %v", p, err)
	}
	// No key reaches the threshold of its rule; its secret is not needed.
	preview(written(t, "alerts.yaml", alertsYAML)).want(t, exitDone, "30 matched by a rule: 0 alerts, 0 sent", "")
	bad := written(t, "alerts.yaml", strings.ReplaceAll(alertsYAML, "denials: 20", "denials: 0"))
	i = preview(bad)
	i.want(t, exitError, "", "limiter: "+bad+": 1 mistake\n")
	if !strings.HasPrefix(i.err.String(), bad+":6: rules[0].threshold.denials: ") {
		t.Errorf("the mistake is shown as %s", i.err.String())
	}
	preview(filepath.Join(t.TempDir(), "none")).want(t, exitError, "", "no such file")
	preview("--max", "10").want(t, exitDone, "10 events", "20 later events were not read; raise --max")
	limiter(t, "alerts", "preview", "--nats-url", testenv.NATS(t).ClientURL()).want(t, exitError, "", "stream LIMITS not found on this NATS server")
}

// TestPreviewRemovesItsProgressBar from the terminal, also if it does not read all events: the bar would stand before what follows.
func TestPreviewRemovesItsProgressBar(t *testing.T) {
	t.Parallel()
	url := pastEvents(t)
	js := testenv.JetStream(t, testenv.Connect(t, url))
	for range 1000 { // after as many the bar is shown
		if _, err := js.PublishAsync(limits.EventExceeded, []byte("no event")); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	for most, want := range map[string]string{"1000": "\rlimiter: 970 messages could not", "1030": "\rlimiter: 1000 messages could not"} {
		i := &invocation{tty: true}
		i.run(t, "alerts", "preview", "--nats-url", url, "--max", most).want(t, exitDone, "30 matched", "reading events")
		i.want(t, exitDone, "30 matched", want)
	}
}

// TestPreviewSaysWhyItCannotRead: nats.go would only say that a deadline is exceeded.
func TestPreviewSaysWhyItCannotRead(t *testing.T) {
	t.Parallel()
	without := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	i := limiter(t, "alerts", "preview", "--nats-url", without.ClientURL())
	i.want(t, exitError, "", "preview alerts: read events: ")
	i.want(t, exitError, "", "JetStream is not enabled on this NATS server")
	may := func(publish, subscribe string) string {
		s := testenv.NATS(t, func(o *server.Options) {
			o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{publish}},
				Subscribe: &server.SubjectPermission{Allow: []string{subscribe}}}}}
		})
		return "nats://u:p@" + s.Addr().String()
	}
	i = limiter(t, "alerts", "preview", "--nats-url", may("limits.>", ">"))
	i.want(t, exitError, "", `limiter: preview alerts: nats: permissions violation: Permissions Violation for Publish to "$JS.API.`)
	i = limiter(t, "alerts", "preview", "--nats-url", may(">", "limits.>"))
	i.want(t, exitError, "", `limiter: preview alerts: nats: permissions violation: Permissions Violation for Subscription to "_INBOX.`)
	i.want(t, exitError, "", "--nats-inbox-prefix (NATS_INBOX_PREFIX)")
}

// TestReportLine counts keys: the rows may all be of one user.
func TestReportLine(t *testing.T) {
	row := func(key string) limits.TopRow { return limits.TopRow{Key: key, User: "7", Denied: 1, Cost: 1} }
	r := &limits.Report{Date: "2026-05-17", Used: []limits.TopRow{row("a"), row("b"), row("c")}, Denied: []limits.TopRow{row("a"), row("b")}}
	const want = "12:00:00.000  report    2026-05-17: 3 heaviest keys, 2 most denied"
	if got := eventLine(noon, limits.Event{Time: noon, Data: r}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAlertEventLines(t *testing.T) {
	for want, data := range map[string]any{
		"raised    7  r: many (a)":                  &limits.AlertRaised{Alert: "a", Rule: "r", Title: "many"},
		"resolved  7  r: many, 9 denied (a)":        &limits.AlertResolved{AlertRaised: limits.AlertRaised{Alert: "a", Rule: "r", Title: "many", Denied: 9}},
		"digest    7  2 alerts held back, 9 denied": &limits.AlertDigest{Alerts: 2, Denied: 9},
		"test      pager  hello":                    &limits.AlertTest{Channel: "pager", Note: "hello"},
	} {
		if got := eventLine(noon, limits.Event{Subject: "7", Time: noon, Data: data}); got != "12:00:00.000  "+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestServiceAlerts runs the verbs against a real limiter with an alerter inside.
func TestServiceAlerts(t *testing.T) {
	s := serve(t)
	watch := new(invocation)
	ended := watch.start(t, "watching alerts.*", "watch", "--type", "alerts.*", "--count", "1", "--nats-url", s.nats)
	sent := s.limiter(t, "alerts test-send --note hello --wait 50s")
	sent.want(t, exitDone, ".nats/nats  sent   1", "")
	sent.want(t, exitDone, ".log/log    sent   1", "")
	<-ended
	watch.want(t, exitDone, "test      nats  hello\n", "watching")
	s.limiter(t, "alerts test-send nobody --json").want(t, exitError, `{"error":{"code":"unknown_channel"`, "no channel named")
	s.limiter(t, "alerts test-send nobody").want(t, exitError, "", `no channel named "nobody" here`)
	s.limiter(t, "alerts channels").want(t, exitDone, "nats     nats  -     0", "")
	s.limiter(t, "alerts list").want(t, exitDone, "no alerts\n", "")
	s.limiter(t, "alerts show nobody").want(t, exitError, "", "404 unknown_alert")
	s.limiter(t, "alerts dead").want(t, exitDone, "no dead letters\n", "")
	s.limiter(t, "alerts replay --all --yes").want(t, exitDone, "replayed 0 dead letters\n", "")
	s.limiter(t, "alerts replay x/y").want(t, exitError, "", "404 unknown_delivery")
	s.limiter(t, "alerts silence --rule denails --for 1h --reason test").want(t, exitError, "", `unknown rule "denails"; the rules are denials`)
	silence := s.limiter(t, "alerts silence --rule denials --user 7 --for 1h --reason test --by ann")
	silence.want(t, exitDone, "; end it with: limiter alerts unsilence ", "")
	id := strings.Fields(silence.out.String())[1]
	s.limiter(t, "alerts silences").want(t, exitDone, id, "")
	s.limiter(t, "alerts unsilence "+id).want(t, exitDone, "ended silence "+id+"\n", "")
	s.limiter(t, "alerts unsilence "+id).want(t, exitError, "", "404 unknown_silence")
	s.limiter(t, "alerts silences").want(t, exitDone, "no silences\n", "")
}
