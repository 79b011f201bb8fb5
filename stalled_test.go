package limits_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// stall is a network that silently accepts no data while it is held, as if all buffers were full.
type stall struct {
	held  sync.RWMutex
	hangs chan struct{} // receives when a write hangs
}

func (s *stall) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return stallingConn{conn, s}, err
}

type stallingConn struct {
	net.Conn
	stall *stall
}

func (c stallingConn) Write(b []byte) (int, error) {
	if !c.stall.held.TryRLock() {
		select {
		case c.stall.hangs <- struct{}{}:
		default:
		}
		c.stall.held.RLock()
	}
	defer c.stall.held.RUnlock()
	return c.Conn.Write(b)
}

// stalled connects to the limiter of the examples over a network that stalls until goOn is called.
func stalled(t *testing.T) (nc *nats.Conn, goOn func()) {
	t.Helper()
	s := &stall{hangs: make(chan struct{}, 1)}
	nc = testenv.Connect(t, natsURL, nats.SetCustomDialer(s))
	s.held.Lock()
	goOn = sync.OnceFunc(s.held.Unlock)
	t.Cleanup(goOn)
	publish(t, nc, "stall", "")
	<-s.hangs // nats.go writes with the connection's lock held
	return nc, goOn
}

// ends fails the test if the call does not end. The connection itself would give up after a minute.
func ends(t *testing.T, name string, call func() error) (err error) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); err = call() }()
	select {
	case <-ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", name)
		return nil
	}
}

// TestCallsEndWhileTheNetworkStalls: each call ends with its context, whatever the connection does.
func TestCallsEndWhileTheNetworkStalls(t *testing.T) {
	t.Parallel()
	nc, goOn := stalled(t)
	c := limits.NewClient(nc, limits.Timeout(20*time.Millisecond))
	request := limits.Per("stalled", 1000, "1h")
	for name, call := range map[string]func(context.Context) error{
		"consume": func(ctx context.Context) error { _, err := c.Consume(ctx, request); return err },
		"record":  func(ctx context.Context) error { _, err := c.Record(ctx, request); return err },
		"wait":    func(ctx context.Context) error { _, err := c.Wait(ctx, request); return err },
		"watch":   func(ctx context.Context) error { _, err := c.Watch(ctx); return err },
	} {
		if err := ends(t, name, func() error { return call(t.Context()) }); !unanswered(err) {
			t.Errorf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := ends(t, name, func() error { return call(ctx) }); !errors.Is(err, context.Canceled) && !unanswered(err) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
	log := func() error {
		return c.LogRequest(limits.LogEntry{Key: "stalled", Endpoint: "/", Method: "GET", Status: 200})
	}
	waitFor(t, func() bool { return errors.Is(ends(t, "log", log), nats.ErrDisconnected) })
	goOn()
	waitFor(t, func() bool { _, err := c.Consume(t.Context(), request); return err == nil })
	waitFor(t, func() bool { return nc.NumSubscriptions() == 1 }) // the one for answers
}

// unanswered reports whether a call timed out, or was refused because the connection is stalled.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrDisconnected)
}

// TestStalledConnectionFailsDecisions: a call for a decision fails at once, and is not sent later.
func TestStalledConnectionFailsDecisions(t *testing.T) {
	t.Parallel()
	nc, goOn := stalled(t)
	c := limits.NewClient(nc)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	request := limits.Per(fmt.Sprintf("piled:%d", time.Now().UnixNano()), 1, "1h")
	waitFor(t, func() bool {
		return errors.Is(ends(t, "one that is over", func() error { _, err := c.Consume(over, request); return err }), nats.ErrDisconnected)
	})
	for name, call := range map[string]func() error{
		"consume": func() error { _, err := c.Consume(t.Context(), request); return err },
		"watch":   func() error { _, err := c.Watch(t.Context()); return err },
	} {
		began := time.Now()
		if err := call(); !errors.Is(err, nats.ErrDisconnected) || time.Since(began) >= limits.DefaultTimeout {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
	goOn()
	waitFor(t, func() bool {
		reply, err := c.Consume(t.Context(), request)
		return err == nil && reply.Allowed // no abandoned call has charged
	})
}

// TestLogLineIsBuffered when LogRequest returns. Otherwise closing the connection right after it
// would lose the line.
func TestLogLineIsBuffered(t *testing.T) {
	t.Parallel()
	nc, goOn := stalled(t)
	var taken atomic.Bool
	time.AfterFunc(100*time.Millisecond, func() { taken.Store(true); goOn() })
	err := limits.NewClient(nc).LogRequest(limits.LogEntry{Key: "late", Endpoint: "/", Method: "GET", Status: 200})
	if err != nil || !taken.Load() {
		t.Errorf("%v, returned while the connection could not take the line: %t", err, !taken.Load())
	}
}

// TestAWatchEndsWhileTheNetworkStalls: its subscriptions end when the network goes on.
func TestAWatchEndsWhileTheNetworkStalls(t *testing.T) {
	t.Parallel()
	s := &stall{hangs: make(chan struct{}, 1)}
	nc := testenv.Connect(t, serveNATS(t, -1).ClientURL(), nats.SetCustomDialer(s))
	events, err := patient(nc).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, nc, limits.EventExceeded, exceededEvent)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(s.held.Unlock)
	s.held.Lock()
	t.Cleanup(goOn)
	_ = ends(t, "the loop", func() error {
		for range events {
			publish(t, nc, "stall", "")
			<-s.hangs
			break
		}
		return nil
	})
	goOn()
	waitFor(t, func() bool { return nc.NumSubscriptions() == 0 })
}

// mute is a proxy that passes connections on, or accepts them and stays silent.
type mute struct {
	mu     sync.Mutex
	silent bool
	conns  []net.Conn
}

// serveMute proxies connections to address until the test ends.
func serveMute(t *testing.T, address string) (m *mute, url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m = new(mute)
	t.Cleanup(func() { listener.Close(); m.setSilent(true) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			m.take(conn, address)
		}
	}()
	return m, "nats://" + listener.Addr().String()
}

func (m *mute) take(conn net.Conn, address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, conn)
	if m.silent {
		return
	}
	to, err := net.Dial("tcp", address)
	if err != nil {
		conn.Close()
		return
	}
	m.conns = append(m.conns, to)
	go io.Copy(conn, to)
	go io.Copy(to, conn)
}

// setSilent closes all connections, and sets whether the proxy is silent on new ones.
func (m *mute) setSilent(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns {
		conn.Close()
	}
	m.silent, m.conns = silent, nil
}

// TestReportsAreKeptWhileServerIsSilent: nats.go holds its lock while it waits for a server that
// it reconnects to.
func TestReportsAreKeptWhileServerIsSilent(t *testing.T) {
	t.Parallel()
	m, url := serveMute(t, strings.TrimPrefix(natsURL, "nats://"))
	lost := make(chan struct{}, 1)
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.Timeout(time.Minute),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.setSilent(false); nc.Close() }) // Close takes the lock, too
	c := limits.NewClient(nc)
	request := limits.Per(fmt.Sprintf("silent:%d", time.Now().UnixNano()), 1_000_000, "1h")
	if _, err := c.Record(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	var charged int64 = 1
	m.setSilent(true)
	<-lost

	record := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // enough to be sent even in a busy process
		defer cancel()
		charged++
		if _, err := c.Record(ctx, request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("record: %v, want it kept", err)
		}
	}
	waitFor(t, func() bool {
		record()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Consume(ctx, request)
		return err != nil && strings.Contains(err.Error(), "is stalled")
	})
	for range 3 {
		record()
	}
	m.setSilent(false)
	var used int64
	waitFor(t, func() bool {
		status, err := c.Status(t.Context(), request.Key)
		if err != nil || len(status.Counters) != 1 {
			return false
		}
		used = status.Counters[0].Used
		return used >= charged
	})
	if used != charged {
		t.Errorf("charged %d, want %d", used, charged)
	}
}
