package postgres

import (
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// proxy forwards bytes between clients and a server. When cutting, it drops the server's next
// answer and closes the connection. When swallowing, existing connections stay open, but nothing is
// forwarded; when hanging, new ones do the same.
type proxy struct {
	url string
	mu  sync.Mutex
	// network and backend are the address of new connections.
	network, backend string
	cutting          bool
	hanging          bool
	// acceptDelay is how long it takes to accept a connection.
	acceptDelay time.Duration
	// generation counts the calls to swallow; connections that were accepted in an earlier one are
	// silent.
	generation int
	// accepted counts connections. Those up to loseAnswersTo lose the next answer, and those up to
	// loseRequestsTo the next request; then they are closed.
	accepted, loseAnswersTo, loseRequestsTo int
	// answerBytes is how many bytes of a lost answer are forwarded.
	answerBytes int
	// requestDelay is how long after the client's connection was closed the server receives the
	// lost request; 0 for never.
	requestDelay time.Duration
	// onNextAnswer, if set, is called instead of forwarding the next answer.
	onNextAnswer func()
	// roundTrips counts how often a client sent something after an answer, or first.
	roundTrips int
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := new(proxy)
	p.redirect(t, target)
	p.url = serveBefore(t, target, func(client net.Conn, _ *pgx.ConnConfig) {
		p.mu.Lock()
		p.accepted++
		number, age, delay, network, backend := p.accepted, p.generation, p.acceptDelay, p.network, p.backend
		p.mu.Unlock()
		server, err := net.Dial(network, backend)
		if err != nil {
			_ = client.Close()
			return
		}
		<-time.After(delay)
		p.pass(client, server, number, age)
	})
	return p
}

// redirect makes new connections go to another server.
func (p *proxy) redirect(t *testing.T, target string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.backend = pgconn.NetworkAddress(cfg.Host, cfg.Port)
}

func (p *proxy) pass(client, server net.Conn, number, age int) {
	defer client.Close()
	var asked atomic.Bool
	go func() {
		defer server.Close()
		_, _ = io.Copy(requestWriter{p, client, server, number, age, &asked}, client)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		asked.Store(false)
		p.mu.Lock()
		lost, heard, answered := number <= p.loseAnswersTo, min(n, p.answerBytes), p.onNextAnswer
		cutting := p.cutting || lost
		p.onNextAnswer = nil
		p.mu.Unlock()
		if answered != nil {
			answered()
			return
		}
		if lost {
			_, _ = client.Write(buf[:heard])
		}
		if err != nil || cutting {
			return
		}
		if p.isSilent(age) {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) setCutting(cutting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutting = cutting
}

// loseAnswers closes each existing connection when the server answers, and loseRequests when the
// client sends, before the server receives it.
func (p *proxy) loseAnswers()  { p.breakAnswers(0) }
func (p *proxy) loseRequests() { p.delayRequests(0) }

// breakAnswers is loseAnswers, but forwards so many bytes of the answer.
func (p *proxy) breakAnswers(heard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseAnswersTo, p.answerBytes = p.accepted, heard
}

// loseAnswersOfNext is loseAnswers, also for the next n connections.
func (p *proxy) loseAnswersOfNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseAnswersTo, p.answerBytes = p.accepted+n, 0
}

// delayRequests is loseRequests, but the server receives the requests late.
func (p *proxy) delayRequests(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseRequestsTo, p.requestDelay = p.accepted, late
}

// breakSometimes breaks the existing connections in one of four ways, four of n times.
func (p *proxy) breakSometimes(r *rand.Rand, n int) {
	switch r.IntN(n) {
	case 0:
		p.loseAnswers()
	case 1:
		p.loseRequests()
	case 2:
		p.breakAnswers(r.IntN(400))
	case 3:
		p.delayRequests(time.Duration(r.IntN(60)) * time.Millisecond)
	}
}

// onAnswer closes the connection on which the server answers next, and calls f.
func (p *proxy) onAnswer(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onNextAnswer = f
}

// requestWriter forwards what the client sends, unless the connection is silent or loses the
// request.
type requestWriter struct {
	p              *proxy
	client, server net.Conn
	number, age    int
	// asked says that the server has not answered since the last request.
	asked *atomic.Bool
}

func (w requestWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	gone, late := w.number <= w.p.loseRequestsTo, w.p.requestDelay
	if !w.asked.Swap(true) {
		w.p.roundTrips++
	}
	w.p.mu.Unlock()
	if gone {
		if late > 0 {
			_ = w.client.Close()
			<-time.After(late)
			_, _ = w.server.Write(b)
		}
		return 0, io.ErrClosedPipe
	}
	if w.p.isSilent(w.age) {
		return len(b), nil
	}
	return w.server.Write(b)
}

// fewestRoundTrips returns how many round trips an act takes on a connection that is there and has been used just now: the
// fewest of some tries, since the store may have something else to do.
func (p *proxy) fewestRoundTrips(act func()) int {
	fewest := math.MaxInt
	for range 10 {
		before := p.roundTripsSoFar()
		act()
		fewest = min(fewest, p.roundTripsSoFar()-before)
	}
	return fewest
}

func (p *proxy) roundTripsSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roundTrips
}

func (p *proxy) isSilent(age int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hanging || age < p.generation
}

func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.generation++
}

func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acceptDelay = delay
}

func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hanging = true
}
