package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// leadWorker is a worker that decides or stands by.
type leadWorker struct {
	*Service
	nc       *nats.Conn
	decided  atomic.Int64
	resting  atomic.Bool
	disabled atomic.Bool
	// slowly is how long its requests take to be taken.
	slowly time.Duration
	// times are how long others may take for an answer.
	times leadTimes
	// store is what the store is called now.
	store atomic.Value
	// reads, when set, is called when a rest is over.
	reads func(ctx context.Context)
}

func (w *leadWorker) rest(ctx context.Context, resting bool) {
	if !resting && w.reads != nil {
		w.reads(ctx)
	}
	w.resting.Store(resting)
}

func (w *leadWorker) able() error {
	if w.disabled.Load() {
		return errors.New("the store is away")
	}
	return nil
}

func startLeadWorker(t *testing.T, url, store string, change ...func(*leadWorker)) *leadWorker {
	t.Helper()
	nc, err := Connect(t.Context(), ConnectConfig{URL: url, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	w := &leadWorker{nc: nc, times: patientTimes}
	w.store.Store(store)
	for _, f := range change {
		f(w)
	}
	s, err := NewService(ServiceConfig{
		Conn: w.nc, Version: "1.2.3", Logger: slog.New(slog.DiscardHandler),
		Engine: &fakeEngine{submit: func(r *engine.Request) error {
			time.Sleep(w.slowly)
			w.decided.Add(1)
			return allowing(r)
		}},
		Lead: &LeadConfig{Store: func() string { return w.store.Load().(string) }, Able: w.able, Rest: w.rest, times: w.times},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Service = s
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Stop(ctx); err != nil && !w.nc.IsClosed() {
			t.Error(err)
		}
	})
	return w
}

func startLeadWorkers(t *testing.T, url string, n int, change ...func(*leadWorker)) (all []*leadWorker) {
	for range n {
		all = append(all, startLeadWorker(t, url, "db", change...))
	}
	return all
}

// patientTimes are for tests in which no worker hangs or is slow, whatever else the machine has to do.
var patientTimes = leadTimes{timeout: patience / 4, slow: patience, prompt: patience}

// impatiently has a worker notice one that hangs, but none that is slow.
func impatiently(w *leadWorker) { w.times.timeout = answerTimeout }

// waitForDeciders waits until exactly the wanted workers decide.
func waitForDeciders(t *testing.T, all []*leadWorker, want ...int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("of %d workers %v decide", len(all), want), func() bool {
		var who []int
		for i, w := range all {
			if w.Deciding() {
				who = append(who, i)
			}
		}
		return slices.Equal(who, want)
	})
}

// TestWorkersFollowAStoreThatMoves: those that learn of it last and first decide side by side until all have, and every
// request is answered meanwhile.
func TestWorkersFollowAStoreThatMoves(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"the one that decides learns of it first": {0, 1, 2}, "or last": {2, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.NATS(t).ClientURL()
			all := startLeadWorkers(t, url, 3)
			waitForDeciders(t, all, 0)
			end := askContinuously(t, url)
			for i, moved := range order {
				all[moved].store.Store("moved")
				if i == 0 && moved != 0 { // the one that stays decides for a store of its own
					waitFor(t, "both stores have a worker that decides", func() bool { return all[0].Deciding() && all[moved].Deciding() })
				}
			}
			all = append(all, startLeadWorker(t, url, "moved"))
			waitForDeciders(t, all, 0)
			for _, err := range end() {
				t.Error(err)
			}
		})
	}
}

func TestOfSeveralWorkersOneDecides(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 3)
	waitForDeciders(t, all, 0)
	nc := dial(t, url)
	for end := time.Now().Add(patience); ; {
		before := all[0].decided.Load()
		for range 100 {
			ask(t, nc, limits.SubjectConsume, hot)
		}
		n, rest := all[0].decided.Load()-before, ""
		for _, w := range all {
			rest += fmt.Sprint(w.resting.Load(), " ")
		}
		if n == 100 && rest == "false true true " {
			break
		}
		if time.Now().After(end) { // on a busy machine it may be taken for one that hangs, for a moment
			t.Fatalf("it decided %d of 100; the workers rest: %s", n, rest)
		}
	}
	for i, w := range all {
		if n := w.nc.Stats().Reconnects; n > 0 {
			t.Errorf("worker %d has connected %d times more", i, n)
		}
	}
	// All of them answer what nobody has to decide, and are services that can be looked at.
	have := map[string]int{}
	for _, info := range infos(t, nc, len(all)) {
		for _, e := range info.Endpoints {
			have[e.Subject]++
		}
	}
	for subject, want := range map[string]int{
		limits.SubjectConsume: 1, limits.SubjectCheck: 1, limits.SubjectRecord: 1, limits.SubjectRefund: 1, limits.SubjectSettle: 1,
		limits.SubjectStatus: 1, limits.SubjectList: 1, limits.SubjectReset: 1, limits.SubjectPolicies: 3,
	} {
		if have[subject] != want {
			t.Errorf("%d workers answer %s, want %d", have[subject], subject, want)
		}
	}
}

// infos asks the services on a server for their info, until n answer at the same time.
func infos(t *testing.T, nc *nats.Conn, n int) (all []micro.Info) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("$SRV.INFO."+limits.ServiceName, inbox, nil); err != nil {
			t.Fatal(err)
		}
		all = nil
		for {
			wait := patience / 10
			if len(all) >= n {
				wait = 200 * time.Millisecond
			}
			m, err := sub.NextMsg(wait)
			if err != nil {
				break
			}
			var info micro.Info
			if err := json.Unmarshal(m.Data, &info); err != nil {
				t.Fatal(err)
			}
			all = append(all, info)
		}
		if len(all) == n {
			return all
		}
	}
	t.Fatalf("%d services, want %d", len(all), n)
	return nil
}

// askContinuously sends requests without a pause until the test ends or end is called, which
// returns the errors of those that had no answer.
func askContinuously(t *testing.T, url string) (end func() []error) {
	nc := dial(t, url)
	stop := make(chan struct{})
	var done sync.WaitGroup
	var failed []error
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := nc.Request(limits.SubjectConsume, []byte(hot), patience); err != nil {
				failed = append(failed, err)
			}
		}
	})
	return sync.OnceValue(func() []error { close(stop); done.Wait(); return failed })
}

func TestAWorkerThatStopsHandsOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 3)
	waitForDeciders(t, all, 0)
	end := askContinuously(t, url)
	for i := range 2 {
		if err := all[i].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		all[i].lead.deciding.Store(false) // for waitForDeciders, below
		if i == 0 {
			waitFor(t, "one of the others decides", func() bool { return all[1].Deciding() || all[2].Deciding() })
		}
	}
	waitForDeciders(t, all, 2)
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
	if all[2].decided.Load() == 0 || all[2].resting.Load() {
		t.Errorf("the last worker decided %d, and rests: %t", all[2].decided.Load(), all[2].resting.Load())
	}
}

// A worker for which nobody stands by stops at once.
func TestLoneWorkerStopsAtOnce(t *testing.T) {
	t.Parallel()
	w := startLeadWorker(t, testenv.NATS(t).ClientURL(), "db")
	waitForDeciders(t, []*leadWorker{w}, 0)
	if began := time.Now(); w.Stop(t.Context()) != nil || time.Since(began) >= handOverTimeout {
		t.Errorf("the stop took %s", time.Since(began))
	}
}

// TestTimesOfTheLeadAreOfTheMonotonicClock: a clock that is set back must not make a worker that stops wait for one that
// has gone, or not wait for one that stands by.
func TestTimesOfTheLeadAreOfTheMonotonicClock(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 2)
	waitForDeciders(t, all, 0)
	l := all[0].lead
	waitFor(t, "the other one asks", func() bool { return l.standbyAskedAt.Load() != nil })
	if err := all[0].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, at := range map[string]time.Time{"asked at": *l.standbyAskedAt.Load(), "decides since": l.decidesSince} {
		if at == at.Round(0) {
			t.Errorf("%s: %s has no monotonic clock", what, at)
		}
	}
}

func TestAWorkerThatDiesIsReplacedByOne(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 3)
	waitForDeciders(t, all, 0)
	all[0].nc.Close()
	all = all[1:]
	waitFor(t, "all but one stand by again", func() bool { return all[0].Deciding() != all[1].Deciding() })
	time.Sleep(2 * decidingAskInterval) // and it stays so
	if all[0].Deciding() == all[1].Deciding() {
		t.Errorf("the first of two that are left decides: %t, and the other: %t", all[0].Deciding(), all[1].Deciding())
	}
}

// impostor is somebody else who tells workers to stand by.
type impostor struct {
	sub    *nats.Subscription
	after  atomic.Int64 // how long an answer takes
	claims atomic.Int64 // how far it says it is from its server
	asked  atomic.Int64 // how often one asked that decides
	silent atomic.Bool
}

func newImpostor(t *testing.T, url, subject string) *impostor {
	t.Helper()
	nc, s := dial(t, url), new(impostor)
	var err error
	s.sub, err = nc.Subscribe(subject, func(m *nats.Msg) {
		if s.silent.Load() {
			return
		}
		var q rank
		if json.Unmarshal(m.Data, &q) == nil && q.Since > 0 {
			s.asked.Add(1)
		}
		answer := fmt.Appendf(nil, `{"since":1,"worker":"strange","roundTrip":%d}`, s.claims.Load())
		time.AfterFunc(time.Duration(s.after.Load()), func() { _ = m.Respond(answer) })
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWorkerDecidesAlongsideSlowOne(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 2, func(w *leadWorker) { w.times = answerTimes })
	other := newImpostor(t, url, all[0].lead.subject())
	waitForDeciders(t, all)
	decides := func() bool { return all[0].Deciding() || all[1].Deciding() }
	for begin := time.Now(); ; {
		other.after.Store(int64(2 * slowAnswer))
		waitFor(t, "one decides beside it", decides)
		// Then it does not stand by again as soon as there is less to do. On a busy machine it may
		// have taken the other for one that hangs, beside which it decides for no longer than that.
		other.after.Store(0)
		before := other.asked.Load()
		waitFor(t, "it asks, or stands by", func() bool { return !decides() || other.asked.Load() >= before+3 })
		if decides() {
			return
		}
		if time.Since(begin) > patience {
			t.Fatal("it stands by again at once")
		}
	}
}

func TestAWorkerWithoutAStoreHandsOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := startLeadWorkers(t, url, 2)
	waitForDeciders(t, all, 0)
	end := askContinuously(t, url)
	all[0].disabled.Store(true)
	waitForDeciders(t, all, 1)
	all[1].disabled.Store(true) // then it does not matter who answers without it
	waitForDeciders(t, all, 0, 1)
	all[0].disabled.Store(false)
	waitForDeciders(t, all, 0)
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
}

func TestWorkersOfOtherStoresDecide(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	all := []*leadWorker{startLeadWorker(t, url, "one"), startLeadWorker(t, url, "another")}
	time.Sleep(2 * decidingAskInterval)
	waitForDeciders(t, all, 0, 1)
}

// TestOneWorkerDecidesAfterServerRestart: all workers lose the server at once, and come back in any
// order.
func TestOneWorkerDecidesAfterServerRestart(t *testing.T) {
	t.Parallel()
	server := testenv.NATSServer(t)
	all := startLeadWorkers(t, server.URL, 3)
	waitForDeciders(t, all, 0)
	server.Kill()
	server.Start()
	nc := dial(t, server.URL)
	for end := time.Now().Add(patience); ; {
		if _, err := nc.Request(limits.SubjectConsume, []byte(hot), time.Second); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	waitForDeciders(t, all, 0)
}

// TestInvalidQuestionsAreNotAnswered: otherwise anybody who may publish there could have a worker
// publish anywhere.
func TestInvalidQuestionsAreNotAnswered(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := startLeadWorker(t, url, "db")
	nc := dial(t, url)
	reply := subjectLeadAnswers + "me.1"
	hear := func(subject string) *nats.Subscription {
		sub, err := nc.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	answers := hear(reply)
	for heard := error(nats.ErrTimeout); heard != nil; _, heard = answers.NextMsg(50 * time.Millisecond) {
		if err := nc.PublishRequest(w.lead.subject(), reply, []byte(`{"since":0,"worker":"me"}`)); err != nil {
			t.Fatal(err)
		}
	}
	sub := hear(">") // not before: this one would seem to be a worker that hangs
	for _, q := range []struct{ reply, data string }{
		{"_INBOX.me", `{"since":0,"worker":"me"}`}, {limits.SubjectConsume, `{"since":0,"worker":"me"}`},
		{reply, ``}, {reply, `{"since":-1,"worker":"me"}`}, {reply, `{"since":0}`}, {reply, `[]`}, {reply, `{"since":0,"worker":"` + string(make([]byte, 600)) + `"}`},
		{reply, fmt.Sprintf(`{"since":0,"worker":%q}`, w.lead.own.Load().Worker)},
	} {
		if err := nc.PublishRequest(w.lead.subject(), q.reply, []byte(q.data)); err != nil {
			t.Fatal(err)
		}
		// A question that is answered comes behind it.
		if err := nc.PublishRequest(w.lead.subject(), reply+"0", []byte(`{"since":0,"worker":"me"}`)); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := sub.NextMsg(patience)
			if err != nil {
				t.Fatal(err)
			}
			if m.Subject == reply+"0" {
				break
			}
			if m.Subject == q.reply {
				t.Errorf("%s was answered to %s: %s", q.data, m.Subject, m.Data)
			}
		}
	}
}
