package bus

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// way is a way to a server, on which all takes a while, or waits. What the server says first comes
// as greets makes it.
type way struct {
	url    string
	takes  time.Duration
	greets func(said []byte) []byte
	// shut is held while all waits.
	shut sync.RWMutex

	mu    sync.Mutex
	conns []net.Conn
}

func asIs(said []byte) []byte { return said }

func newWay(t *testing.T, to *natsserver.Server, takes time.Duration, greets func([]byte) []byte) *way {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &way{url: "nats://" + l.Addr().String(), takes: takes, greets: greets}
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
			go w.pass(client, server, asIs)
			go w.pass(server, client, w.greets)
		}
	}()
	return w
}

// pass hands on what comes, in its time, the first of it as begins makes it.
func (w *way) pass(from, to net.Conn, begins func([]byte) []byte) {
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1<<14)
	go func() {
		defer to.Close()
		for p := range parts {
			time.Sleep(time.Until(p.due))
			w.shut.RLock()
			_, err := to.Write(p.data)
			w.shut.RUnlock()
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
			parts <- part{time.Now().Add(w.takes), begins(slices.Clone(buf[:n]))}
			begins = asIs
		}
		if err != nil {
			return
		}
	}
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// consumers are the connections of which a server has a subscription to consume.
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

// oneConsumes waits until only the one that decides has a subscription, for the server too, and
// holds that it answers all.
func oneConsumes(t *testing.T, srv *natsserver.Server) {
	t.Helper()
	waitFor(t, "the server has one worker for requests to decide", func() bool { return consumers(t, srv) == 1 })
	nc := dial(t, srv.ClientURL())
	for range 50 {
		ask(t, nc, limits.SubjectConsume, hot)
	}
}

// TestAWorkerBehindAServerThatHangsStandsByAgain has the way of one that stands by hang, so that it
// tries to take over, and its connection end in the middle of that.
func TestAWorkerBehindAServerThatHangsStandsByAgain(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	a := ledWorker(t, srv.ClientURL(), "db")
	deciding(t, []*led{a}, 0)
	w := newWay(t, srv, 0, asIs)
	b := ledWorker(t, w.url, "db")
	deciding(t, []*led{a, b}, 0)
	for range 3 {
		w.shut.Lock()
		time.Sleep(answerTimeout + decidingAskInterval/2) // it is at it now
		w.cut()
		waitFor(t, "the connection has ended", func() bool { return !b.nc.IsConnected() })
		w.shut.Unlock()
		waitFor(t, "the connection is made anew", b.nc.IsConnected)
		time.Sleep(2 * decidingAskInterval)
		deciding(t, []*led{a, b}, 0)
		oneConsumes(t, srv)
	}
}

// TestAConnectionThatIsMadeAnewBelowADrainLeavesNothing: nats.go forgets what it subscribed to again.
func TestAConnectionThatIsMadeAnewBelowADrainLeavesNothing(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	a := ledWorker(t, srv.ClientURL(), "db")
	deciding(t, []*led{a}, 0)
	nc := dial(t, srv.ClientURL())
	for range 3 {
		b := ledWorker(t, srv.ClientURL(), "db", func(w *led) { w.slowly = time.Millisecond })
		for range 300 {
			if err := nc.PublishRequest(limits.SubjectConsume, nats.NewInbox(), []byte(hot)); err != nil {
				t.Fatal(err)
			}
		}
		for b.Deciding() {
			time.Sleep(100 * time.Microsecond)
		}
		if err := b.nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(decidingAskInterval / 2)
		oneConsumes(t, srv)
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnswersToEarlierQuestionsAreNone: what the server said of questions before it was restarted.
func TestAnswersToEarlierQuestionsAreNone(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := ledWorker(t, url, "db")
	deciding(t, []*led{w}, 0)
	time.Sleep(decidingAskInterval / 2)
	for range 100 {
		if err := w.nc.PublishRequest(subjectLead+".nobody", strings.TrimSuffix(w.lead.answerSub.Subject, "*")+"0", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	newStrange(t, url, w.lead.subject())
	time.Sleep(3 * decidingAskInterval)
	deciding(t, []*led{w})
}

// TestAWorkerWhoseStoreHangsTakesOver: to read what was decided meanwhile must not keep it from that.
func TestAWorkerWhoseStoreHangsTakesOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	a := ledWorker(t, url, "db")
	deciding(t, []*led{a}, 0)
	b := ledWorker(t, url, "db", func(w *led) { w.reads = func(ctx context.Context) { <-ctx.Done() } })
	deciding(t, []*led{a, b}, 0)
	end := asking(t, url)
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

// TestAWorkerThatStopsAtOnceHandsOver to one that has only begun to stand by.
func TestAWorkerThatStopsAtOnceHandsOver(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	w := ledWorker(t, url, "db")
	deciding(t, []*led{w}, 0)
	time.Sleep(2 * decidingAskInterval) // it is not new
	end := asking(t, url)
	next := ledWorker(t, url, "db")
	for next.Deciding() {
		time.Sleep(100 * time.Microsecond)
	}
	if err := w.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if failed := end(); failed != nil {
		t.Errorf("%d requests had no answer, the first: %v", len(failed), failed[0])
	}
}

// TestWorkersFarFromTheirServerStandBy: what the way takes is no work.
func TestWorkersFarFromTheirServerStandBy(t *testing.T) {
	t.Parallel()
	w := newWay(t, testenv.NATS(t), 12*time.Millisecond, asIs) // an answer takes 48 ms
	all := []*led{ledWorker(t, w.url, "db"), ledWorker(t, w.url, "db")}
	deciding(t, all, 0)
	time.Sleep(3 * decidingAskInterval)
	deciding(t, all, 0)
}

// TestAWorkerThatStoodStillBlamesNobody for the time that it did not look.
func TestAWorkerThatStoodStillBlamesNobody(t *testing.T) {
	t.Parallel()
	l := new(lead)
	for range 100 {
		l.answerTime += (time.Millisecond - l.answerTime) / 16
	}
	for range 5 {
		if l.answersSlowly(time.Second) {
			t.Fatal("a few late answers are taken for a slow worker")
		}
	}
}

// TestManyWorkersComeAndGo at once, and no request is lost.
func TestManyWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	srv := testenv.NATS(t)
	all := ledWorkers(t, srv.ClientURL(), 1)
	deciding(t, all, 0)
	end := asking(t, srv.ClientURL())
	for range 3 {
		next := ledWorkers(t, srv.ClientURL(), 5)
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
	oneConsumes(t, srv)
}
