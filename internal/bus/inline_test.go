package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/testenv"
)

// inlineRequests are such that are decided, refused while they are read, refused by the engine, and ended with an error.
var inlineRequests = [][2]string{
	{limits.SubjectConsume, `{"key":"k","limit":10,"window":"1m"}`},
	{limits.SubjectConsume, `{"key":"k","limit":10,"window":"1m"}`},
	{limits.SubjectCheck, `{"key":"k","limit":10,"window":"1m","cost":3}`},
	{limits.SubjectRecord, `{"limits":[{"key":"k","limit":10,"window":"1m"},{"key":"ü","limit":10,"window":"1h"}]}`},
	{limits.SubjectRefund, `{"key":"k","limit":10,"window":"1m"}`},
	{limits.SubjectConsume, `{"key":"k","limit":0,"window":"1m"}`},
	{limits.SubjectConsume, `{`},
	{limits.SubjectConsume, ``},
	{limits.SubjectConsume, `{"key":"` + strings.Repeat("k", limits.MaxRequestBytes) + `"}`},
	{limits.SubjectConsume, `{"key":"busy","limit":1,"window":"1m"}`},
	{limits.SubjectConsume, `{"key":"damaged","limit":1,"window":"1m"}`},
	{limits.SubjectConsume, `{"key":"large","limit":1,"window":"1m"}`},
}

// decidingByKey decides as allowing does, except for some keys.
func decidingByKey(r *engine.Request) error {
	switch r.Limits[0].Key {
	case "busy":
		return engine.ErrOverloaded
	case "damaged":
		r.Done(engine.Decision{}, engine.ErrCorrupt)
		return nil
	case "large":
		r.Done(engine.Decision{Results: []engine.Result{{Key: strings.Repeat("k", 1<<20), Name: "1m"}}}, nil)
		return nil
	}
	return allowing(r)
}

// TestInlineAndEndpointAnswersAreTheSame: apart from the time it takes, nobody can tell whether a
// request went through nats.go.
func TestInlineAndEndpointAnswersAreTheSame(t *testing.T) {
	t.Parallel()
	taken, nc := serve(t, &fakeEngine{submit: decidingByKey})
	handed, other := serve(t, &fakeEngine{submit: decidingByKey}, func(c *ServiceConfig) { c.Conn = dial(t, c.Conn.ConnectedUrl()) })
	var stats [2]micro.Stats
	for i, r := range inlineRequests {
		a, b := ask(t, nc, r[0], r[1]), ask(t, other, r[0], r[1])
		if i%2 == 1 { // such as tracing adds
			a = asked(t, nc, &nats.Msg{Subject: r[0], Data: []byte(r[1]), Header: nats.Header{"traceparent": {"00-1-2-01"}}})
			ask(t, other, r[0], r[1]) // for the statistics
		}
		if diff := cmp.Diff(string(b.Data), string(a.Data)) + cmp.Diff(b.Header, a.Header); diff != "" {
			t.Errorf("%.80s: %.600s", r[1], diff)
		}
	}
	for i, nc := range []*nats.Conn{nc, other} {
		for _, subject := range []string{"$SRV.STATS.limits", "$SRV.STATS", "$SRV.STATS.limits." + []*Service{taken, handed}[i].current.Info().ID} {
			stats[i] = statsOf(t, nc, subject, len(inlineRequests)+len(inlineRequests)/2)
		}
		stats[i].ID, stats[i].Started = "", time.Time{}
		for _, e := range stats[i].Endpoints {
			e.ProcessingTime, e.AverageProcessingTime = 0, 0
		}
	}
	if diff := cmp.Diff(stats[1], stats[0]); diff != "" {
		t.Error(diff)
	}
	if n := taken.current.inlineStats[limits.SubjectConsume].requests.Load(); n != 8 {
		t.Errorf("%d were taken", n)
	}
	if handed.current.inlineStats != nil {
		t.Error("a connection of another kind takes requests")
	}
}

// statsOf returns the statistics of a service after so many requests. It waits for them because
// micro counts a request after its answer.
func statsOf(t *testing.T, nc *nats.Conn, subject string, requests int) micro.Stats {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		var stats micro.Stats
		if err := json.Unmarshal(ask(t, nc, subject, "").Data, &stats); err != nil {
			t.Fatal(err)
		}
		counted := 0
		for _, e := range stats.Endpoints {
			counted += e.NumRequests
		}
		if counted == requests {
			return stats
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d of %d requests are counted: %+v", counted, requests, stats)
		}
	}
}

// TestStatisticsIncludeProcessingTime, although only one in many inline requests is timed.
func TestStatisticsIncludeProcessingTime(t *testing.T) {
	t.Parallel()
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error { time.Sleep(time.Millisecond); return allowing(r) }})
	const requests = 5
	for range requests {
		ask(t, nc, limits.SubjectConsume, hot)
	}
	for _, e := range statsOf(t, nc, "$SRV.STATS.limits", requests).Endpoints {
		if e.Subject == limits.SubjectConsume && (e.NumRequests != requests || e.AverageProcessingTime < time.Millisecond || e.AverageProcessingTime > time.Second) {
			t.Errorf("%+v", e)
		}
	}
}

// blockingStats are statistics that take until the test lets them go on.
type blockingStats struct {
	micro.Service
	goOn chan struct{}
}

func (c blockingStats) Stats() micro.Stats {
	<-c.goOn
	return micro.Stats{}
}

// TestStatisticsNeverDecrease: the micro service lacks the inline requests, so it is never asked
// itself. A stop waits for statistics that are being answered.
func TestStatisticsNeverDecrease(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, &fakeEngine{submit: allowing})
	goOn := make(chan struct{})
	tells := s.statsHandler(&microService{Service: blockingStats{goOn: goOn}})
	questions := make([]natsconn.Message, maxStats+3)
	for i := range questions {
		questions[i].Reply = []byte("inbox")
	}
	if taken := tells(nil, questions); taken != len(questions) {
		t.Errorf("%d of %d questions were taken", taken, len(questions))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("wait for %d answers", maxStats)) {
		t.Errorf("a stop says %v", err)
	}
	close(goOn)
	waitFor(t, "all answers are given", func() bool { return s.pending.Load() == 0 })
}

// TestAnswersSurviveReconnect: the client may still be connected, so what is decided after the
// worker's connection broke is answered all the same.
func TestAnswersSurviveReconnect(t *testing.T) {
	t.Parallel()
	var waiting atomic.Pointer[engine.Request]
	asked := make(chan struct{})
	s, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		waiting.Store(r)
		close(asked)
		return nil
	}})
	inbox, err := nc.SubscribeSync("inbox")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(limits.SubjectConsume, "inbox", []byte(hot)); err != nil {
		t.Fatal(err)
	}
	<-asked
	before := s.cfg.Conn.Stats().Reconnects
	if err := s.cfg.Conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection is made anew", func() bool { return s.cfg.Conn.Stats().Reconnects > before && s.cfg.Conn.IsConnected() })
	if err := allowing(waiting.Load()); err != nil {
		t.Fatal(err)
	}
	if m, err := inbox.NextMsg(time.Minute); err != nil || !strings.HasPrefix(string(m.Data), `{"allowed":true`) {
		t.Errorf("%v, %v", m, err)
	}
}

// TestAnswersFollowTheirBroadcast: nats.go may have the broadcast, so it gets the answer too.
func TestAnswersFollowTheirBroadcast(t *testing.T) {
	t.Parallel()
	s, nc := serve(t, &fakeEngine{submit: allowing})
	for subject, want := range map[string]uint64{limits.SubjectConsume: 0, limits.SubjectCheck: 0, limits.SubjectRecord: 1, limits.SubjectRefund: 1} {
		before := s.cfg.Conn.Stats().OutMsgs
		ask(t, nc, subject, hot)
		if got := s.cfg.Conn.Stats().OutMsgs - before; got != want {
			t.Errorf("%s: nats.go sent %d messages, want %d", subject, got, want)
		}
	}
}

// TestReadingDoesNotWaitForNATSGo: nats.go holds a lock while it writes, and may write until more
// is read. An answer that comes at once and cannot go where its request came from is written on
// another goroutine, as long as a slot is free.
func TestReadingDoesNotWaitForNATSGo(t *testing.T) {
	t.Parallel()
	sent := make(chan uint64, 1)
	var s *Service
	log := new(logBuffer)
	s, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		d := engine.Decision{Allowed: true, Results: []engine.Result{}}
		if r.Verb == engine.Check {
			d.Results = append(d.Results, engine.Result{Key: strings.Repeat("k", 1<<20), Name: "1m"})
		}
		before := s.cfg.Conn.Stats().OutMsgs
		r.AtOnce = true
		r.Done(d, nil)
		sent <- s.cfg.Conn.Stats().OutMsgs - before
		return nil
	}}, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	subjects := []string{limits.SubjectRecord, limits.SubjectRefund, limits.SubjectCheck}
	for range maxWrites {
		s.writeSlots <- struct{}{}
	}
	for _, subject := range subjects {
		if err := nc.PublishRequest(subject, "inbox", []byte(hot)); err != nil {
			t.Fatal(err)
		}
		if n := <-sent; n > 0 {
			t.Errorf("%s: nats.go sent %d messages", subject, n)
		}
	}
	if n := s.lostAnswers.Load(); n != int64(len(subjects)) {
		t.Errorf("%d answers were lost, for which there was no room", n)
	}
	if said := log.String(); strings.Count(said, `msg="cannot publish an answer" error="too many answers are waiting to be written" times=1`) != 1 {
		t.Errorf("log: %s", said)
	}
	for range maxWrites {
		<-s.writeSlots
	}
	for _, subject := range subjects {
		m := ask(t, nc, subject, hot)
		if too := m.Header.Get(micro.ErrorCodeHeader) == "413"; too != (subject == limits.SubjectCheck) {
			t.Errorf("%s: %.300s", subject, m.Data)
		}
		<-sent
	}
}

// TestOversizedAnswersAreNotSent: one would end the connection, and with it all requests that are
// under way.
func TestOversizedAnswersAreNotSent(t *testing.T) {
	t.Parallel()
	small := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = smallAnswer })
	s, _ := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		r.Done(engine.Decision{Results: []engine.Result{{Key: strings.Repeat("k", smallAnswer), Name: "1m"}}}, nil)
		return nil
	}}, func(c *ServiceConfig) { c.Conn = connect(t, small.ClientURL()) })
	m := ask(t, dial(t, small.ClientURL()), limits.SubjectConsume, hot)
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "413" || s.cfg.Conn.Stats().Reconnects > 0 {
		t.Errorf("%s %.300s; %d reconnects", code, m.Data, s.cfg.Conn.Stats().Reconnects)
	}
}

// TestUserMaxPayloadIsRespected: the server tells it after its first line, and would end the
// connection at a larger answer, too.
func TestUserMaxPayloadIsRespected(t *testing.T) {
	t.Parallel()
	small := testenv.NATS(t, func(o *server.Options) { o.MaxPayload = smallAnswer })
	url := newSlowLink(t, small, 0, func(said []byte) []byte { // of the first line alone, as where a user has a limit of his own
		own := fmt.Appendf(nil, `"max_payload":%d`, smallAnswer)
		if !bytes.Contains(said, own) {
			t.Errorf("no limit in what the server says first: %.1000s", said)
		}
		return bytes.Replace(said, own, fmt.Appendf(nil, `"max_payload":%d`, 1<<20), 1)
	}).url
	s, _ := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		r.Done(engine.Decision{Results: []engine.Result{{Key: strings.Repeat("k", smallAnswer), Name: "1m"}}}, nil)
		return nil
	}}, func(c *ServiceConfig) { c.Conn = connect(t, url) })
	nc := dial(t, small.ClientURL())
	for n := range uint64(3) {
		if m := ask(t, nc, limits.SubjectConsume, hot); m.Header.Get(micro.ErrorCodeHeader) != "413" || s.cfg.Conn.Stats().Reconnects != n {
			t.Fatalf("%d: %.300s %v; %d reconnects", n, m.Data, m.Header, s.cfg.Conn.Stats().Reconnects)
		}
		if err := s.cfg.Conn.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "it is connected again", func() bool { return s.cfg.Conn.Stats().Reconnects > n && s.cfg.Conn.Flush() == nil })
		// Until the server has seen that the connection before has ended, it sends requests there, too.
		waitFor(t, "the server knows of one connection", func() bool { return consumers(t, small) == 1 })
	}
	waitFor(t, "the limit is known", func() bool { return dialerOf(s.cfg.Conn).maxPayload.Load().Load() == smallAnswer })
}

// TestClientsCannotEndTheWorkersConnection: nats.go takes a carriage return for the end of a
// subject, and then for a mistake of the server, although the server only passes it on. In some
// places the server drops the carriage return from a reply subject, so that an answer could become
// a broadcast of the worker.
func TestClientsCannotEndTheWorkersConnection(t *testing.T) {
	t.Parallel()
	log, logged := new(bytes.Buffer), make(chan struct{}, 100)
	s, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) {
		nc, err := Connect(t.Context(), ConnectConfig{URL: c.Conn.ConnectedUrl(), Name: "x", Logger: slog.New(slog.NewTextHandler(&signalWriter{log, logged}, nil))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		c.Conn = nc
	})
	raw, err := net.Dial("tcp", strings.TrimPrefix(nc.ConnectedUrl(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := fmt.Fprintf(raw, "CONNECT {\"verbose\":false}\r\nPUB %[1]s limits\r.internal.forget %[2]d\r\n%[3]s\r\nPUB %[1]s inbox %[2]d\r\n%[3]s\r\n",
		limits.SubjectConsume, len(hot), hot); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the request behind it is taken", func() bool { return s.current.inlineStats[limits.SubjectConsume].requests.Load() > 0 })
	<-logged
	if text := log.String(); !strings.Contains(text, "carriage return") {
		t.Error(text)
	}
	if n := s.cfg.Conn.Stats().Reconnects; n > 0 || !s.cfg.Conn.IsConnected() {
		t.Errorf("%d reconnects", n)
	}
	ask(t, nc, limits.SubjectConsume, hot)
}

// TestLongReplySubjectsAreNotAnswered, whatever the subject of the request: if the message came
// from another server that allows longer ones, it may be too long for the worker's server, which
// would end the connection.
func TestLongReplySubjectsAreNotAnswered(t *testing.T) {
	t.Parallel()
	w := startLeadWorker(t, testenv.NATS(t).ClientURL(), "db")
	nc := dial(t, w.nc.ConnectedUrl())
	long := "." + strings.Repeat("a", natsconn.MaxReplySubject)
	waitFor(t, "others are answered", func() bool {
		_, err := nc.Request(w.lead.subject(), []byte(`{"worker":"w","leaving":true}`), 100*time.Millisecond)
		return !errors.Is(err, nats.ErrNoResponders)
	})
	for _, subject := range []string{"$SRV.PING", "$SRV.INFO.limits", "$SRV.STATS", w.lead.subject(), limits.SubjectConsume, limits.SubjectStatus} {
		prefix, body := "_INBOX.x", hot
		if subject == w.lead.subject() {
			prefix, body = subjectLeadAnswers+"x", `{"worker":"w","leaving":true}`
		}
		answers, err := nc.SubscribeSync(prefix + ".*")
		if err != nil {
			t.Fatal(err)
		}
		for _, reply := range []string{prefix + long, prefix + ".short"} {
			if err := nc.PublishRequest(subject, reply, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := answers.NextMsg(patience); err != nil || m.Subject != prefix+".short" {
			t.Errorf("%s: %.80v, %v", subject, m, err)
		}
		if err := answers.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFloodDoesNotEndTheConnection: requests that arrive faster than they are answered must not
// wait in the server. It has less room than the flood, and ends connections that it cannot write
// to.
func TestAFloodDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	const mostWaiting, flood, eachMillisecond = 16 << 20, 48 << 20, 128 << 10
	url := testenv.NATS(t, func(o *server.Options) { o.MaxPending = mostWaiting }).ClientURL()
	slow := func(r *engine.Request) error { time.Sleep(time.Millisecond); return allowing(r) }
	s, _ := serve(t, &fakeEngine{submit: slow}, func(c *ServiceConfig) { c.Conn = connect(t, url) })
	nc := dial(t, url)
	request := []byte(`{"key":"a","limit":5,"window":"1m"` + strings.Repeat(" ", 8<<10) + `}`)
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for sent := 0; sent < flood; sent += eachMillisecond {
		<-pace.C
		for range eachMillisecond / len(request) {
			if err := nc.PublishRequest(limits.SubjectConsume, "nobody", request); err != nil {
				t.Fatal(err)
			}
		}
	}
	for of, nc := range map[string]*nats.Conn{"client": nc, "worker": s.cfg.Conn} {
		if err := nc.FlushTimeout(patience); err != nil {
			t.Errorf("the server does not answer the %s: %v", of, err)
		}
	}
	if n := s.cfg.Conn.Stats().Reconnects; n > 0 {
		t.Errorf("the connection was made anew, %d times", n)
	}
}
