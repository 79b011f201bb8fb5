package bus

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// slowLink is a proxy to a server that delays everything, or blocks. rewriteFirst changes what the
// server sends first.
type slowLink struct {
	url string
	// delay is in nanoseconds, for each direction.
	delay        atomic.Int64
	rewriteFirst func(said []byte) []byte
	// blocked is held while everything waits.
	blocked sync.RWMutex

	mu    sync.Mutex
	conns []net.Conn
}

func unchanged(data []byte) []byte { return data }

func newSlowLink(t *testing.T, to *natsserver.Server, delay time.Duration, rewriteFirst func([]byte) []byte) *slowLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &slowLink{url: "nats://" + l.Addr().String(), rewriteFirst: rewriteFirst}
	w.delay.Store(int64(delay))
	t.Cleanup(func() { _ = l.Close(); w.cut() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to.Addr().String())
			if err != nil {
				_ = client.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, server)
			w.mu.Unlock()
			go w.pass(client, server, unchanged)
			go w.pass(server, client, w.rewriteFirst)
		}
	}()
	return w
}

// pass copies what arrives, delayed, with the first part changed by rewriteFirst.
func (w *slowLink) pass(from, to net.Conn, rewriteFirst func([]byte) []byte) {
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1<<14)
	go func() {
		defer to.Close()
		for p := range parts {
			time.Sleep(time.Until(p.due))
			w.blocked.RLock()
			_, err := to.Write(p.data)
			w.blocked.RUnlock()
			if err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(parts)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			parts <- part{time.Now().Add(time.Duration(w.delay.Load())), rewriteFirst(slices.Clone(buf[:n]))}
			rewriteFirst = unchanged
		}
		if err != nil {
			return
		}
	}
}

func (w *slowLink) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// consumers counts the connections of a server that are subscribed to consume.
func consumers(t *testing.T, srv *natsserver.Server) (n int) {
	t.Helper()
	all, err := srv.Connz(&natsserver.ConnzOptions{Subscriptions: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Conns {
		if slices.Contains(c.Subs, limits.SubjectConsume) {
			n++
		}
	}
	return n
}

// waitForOneConsumer waits until, for the server too, only the deciding worker is subscribed, and
// checks that it answers everything.
func waitForOneConsumer(t *testing.T, srv *natsserver.Server) {
	t.Helper()
	waitFor(t, "the server has one worker for requests to decide", func() bool { return consumers(t, srv) == 1 })
	nc := dial(t, srv.ClientURL())
	for range 50 {
		ask(t, nc, limits.SubjectConsume, hot)
	}
}

// TestAWorkerBehindAServerThatHangsStandsByAgain blocks the link of a worker that stands by, so
// that it tries to take over, and ends its connection in the middle of that.
func TestAWorkerBehindAServerThatHangsStandsByAgain(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	a := startLeadWorker(t, srv.ClientURL(), "db")
	waitForDeciders(t, []*leadWorker{a}, 0)
	w := newSlowLink(t, srv, 0, unchanged)
	b := startLeadWorker(t, w.url, "db", impatiently)
	waitForDeciders(t, []*leadWorker{a, b}, 0)
	for range 3 {
		w.blocked.Lock()
		time.Sleep(answerTimeout + decidingAskInterval/2) // it is at it now
		w.cut()
		waitFor(t, "the connection has ended", func() bool { return !b.nc.IsConnected() })
		w.blocked.Unlock()
		waitFor(t, "the connection is made anew", b.nc.IsConnected)
		time.Sleep(2 * decidingAskInterval)
		waitForDeciders(t, []*leadWorker{a, b}, 0)
		waitForOneConsumer(t, srv)
	}
}

// TestAReconnectDuringADrainLeavesNoSubscription: nats.go forgets what it subscribed to again.
func TestAReconnectDuringADrainLeavesNoSubscription(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	a := startLeadWorker(t, srv.ClientURL(), "db")
	waitForDeciders(t, []*leadWorker{a}, 0)
	nc := dial(t, srv.ClientURL())
	for range 3 {
		b := startLeadWorker(t, srv.ClientURL(), "db", func(w *leadWorker) { w.slowly = time.Millisecond })
		for range 300 {
			if err := nc.PublishRequest(limits.SubjectConsume, nats.NewInbox(), []byte(hot)); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "it stands by", func() bool { return !b.Deciding() })
		if err := b.nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(decidingAskInterval / 2)
		waitForOneConsumer(t, srv)
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLateAnswersAreIgnored: before it was restarted the server answered earlier questions.
func TestLateAnswersAreIgnored(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := startLeadWorker(t, url, "db")
	waitForDeciders(t, []*leadWorker{w}, 0)
	time.Sleep(decidingAskInterval / 2)
	for range 100 {
		if err := w.nc.PublishRequest(subjectLead+".nobody", strings.TrimSuffix(w.lead.answerSub.Subject, "*")+"0", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	newImpostor(t, url, w.lead.subject())
	time.Sleep(3 * decidingAskInterval)
	waitForDeciders(t, []*leadWorker{w})
}

// TestAWorkerWhoseStoreHangsTakesOver: reading what was decided meanwhile must not keep it from
// that.
func TestAWorkerWhoseStoreHangsTakesOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	a := startLeadWorker(t, url, "db")
	waitForDeciders(t, []*leadWorker{a}, 0)
	b := startLeadWorker(t, url, "db", func(w *leadWorker) { w.reads = func(ctx context.Context) { <-ctx.Done() } })
	waitForDeciders(t, []*leadWorker{a, b}, 0)
	end := askContinuously(t, url)
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Deciding() {
		t.Error("nobody decides")
	}
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
	began := time.Now()
	if err := b.Stop(t.Context()); err != nil || time.Since(began) > handOverTimeout {
		t.Errorf("its stop beside that took %s: %v", time.Since(began), err)
	}
}

// TestAWorkerThatStopsAtOnceHandsOver to one that has only just begun to stand by.
func TestAWorkerThatStopsAtOnceHandsOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := startLeadWorker(t, url, "db")
	waitForDeciders(t, []*leadWorker{w}, 0)
	time.Sleep(2 * decidingAskInterval) // it is not new
	end := askContinuously(t, url)
	next := startLeadWorker(t, url, "db")
	waitFor(t, "the next stands by", func() bool { return !next.Deciding() })
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
}

// TestFewLateAnswersDoNotMakeAWorkerSlow: this worker may have stood still and not have looked.
func TestFewLateAnswersDoNotMakeAWorkerSlow(t *testing.T) {
	t.Parallel()
	l := &lead{cfg: LeadConfig{times: answerTimes}}
	for range 100 {
		l.answerTime += (time.Millisecond - l.answerTime) / 16
	}
	for range 5 {
		if l.answersSlowly(time.Second) {
			t.Fatal("a few late answers are taken for a slow worker")
		}
	}
}

// TestManyWorkersComeAndGo at the same time, and no request is lost.
func TestManyWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	all := startLeadWorkers(t, srv.ClientURL(), 1)
	waitForDeciders(t, all, 0)
	end := askContinuously(t, srv.ClientURL())
	for range 3 {
		next := startLeadWorkers(t, srv.ClientURL(), 5)
		time.Sleep(decidingAskInterval / 2)
		var stops sync.WaitGroup
		for _, w := range all {
			stops.Go(func() {
				if err := w.Stop(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		stops.Wait()
		all = next
	}
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
	waitForOneConsumer(t, srv)
}
