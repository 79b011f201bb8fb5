package postgres

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// proxy passes bytes on, until it is told to cut: then what the server says next is swallowed. Told to swallow, it keeps
// the connections that it has and passes nothing on; told to hang, it does so with new ones too.
type proxy struct {
	url string
	mu  sync.Mutex
	// network and backend are where new connections go.
	network, backend string
	cutting          bool
	hanging          bool
	// delay is how long it takes to let anybody in.
	delay time.Duration
	// age is one more for each time it was told to swallow; what was accepted before is silent.
	age int
	// accepted counts connections. Of those up to lost the next answer is lost, and of those up to gone the next request, and
	// then the connection.
	accepted, lost, gone int
	// heard is how many bytes come through of an answer that is lost.
	heard int
	// late is how long behind the end of the connection to the client that next request comes to the server; 0 for never.
	late time.Duration
	// answered, if set, is called when the server has said something, instead of passing it on.
	answered func()
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	cfg, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := new(proxy)
	p.network, p.backend = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	u.Host = l.Addr().String()
	q := u.Query()
	q.Del("host")
	u.RawQuery = q.Encode()
	p.url = u.String()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.accepted++
			number, age, delay, network, backend := p.accepted, p.age, p.delay, p.network, p.backend
			p.mu.Unlock()
			server, err := net.Dial(network, backend)
			if err != nil {
				_ = client.Close()
				continue
			}
			time.AfterFunc(delay, func() { p.pass(client, server, number, age) })
		}
	}()
	return p
}

// lead has new connections go to another server.
func (p *proxy) lead(t *testing.T, target string) {
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
	go func() {
		defer server.Close()
		_, _ = io.Copy(requestWriter{p, client, server, number, age}, client)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		p.mu.Lock()
		lost, heard, answered := number <= p.lost, min(n, p.heard), p.answered
		cutting := p.cutting || lost
		p.answered = nil
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
		if p.silent(age) {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cut() { p.setCutting(true) }

func (p *proxy) setCutting(cutting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutting = cutting
}

// loseAnswers cuts each connection that there is when the server answers, and loseRequests when the client asks, before the server
// has heard it.
func (p *proxy) loseAnswers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.heard = p.accepted, 0
}

// breakAnswers is loseAnswers, but so many bytes come through.
func (p *proxy) breakAnswers(heard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.heard = p.accepted, heard
}

func (p *proxy) loseRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.late = p.accepted, 0
}

// loseMore is loseAnswers, also of so many connections that are made then.
func (p *proxy) loseMore(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.heard = p.accepted+n, 0
}

// delayRequests is loseRequests, but the server hears them, late.
func (p *proxy) delayRequests(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.late = p.accepted, late
}

// onAnswer cuts the connection at which the server answers next, and calls f then.
func (p *proxy) onAnswer(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered = f
}

// told takes what the client says, and keeps it where the connection is silent.
type requestWriter struct {
	p              *proxy
	client, server net.Conn
	number, age    int
}

func (w requestWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	gone, late := w.number <= w.p.gone, w.p.late
	w.p.mu.Unlock()
	if gone {
		if late > 0 {
			_ = w.client.Close()
			<-time.After(late)
			_, _ = w.server.Write(b)
		}
		return 0, io.ErrClosedPipe
	}
	if w.p.silent(w.age) {
		return len(b), nil
	}
	return w.server.Write(b)
}

func (p *proxy) silent(age int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hanging || age < p.age
}

func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.age++
}

func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hanging = true
}
