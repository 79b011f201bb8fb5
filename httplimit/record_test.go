package httplimit_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

func checkThenRecord(t testing.TB, c *limits.Client, limit int64) func(http.Handler) http.Handler {
	return httplimit.Middleware(c, httplimit.Config{Limits: inline(t, limit, "1h"), Mode: httplimit.CheckThenRecord,
		Deadline: patient, FailClosed: true})
}

// TestRequestFieldsAreCopiedBack: package http removes the files of an upload by the original
// request, and a logger around the middleware reads the pattern of that.
func TestRequestFieldsAreCopiedBack(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	for name, limited := range map[string]func(http.Handler) http.Handler{
		"consume":           httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 10, "1h"), Deadline: patient, FailClosed: true}),
		"check then record": checkThenRecord(t, c, 10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, patterns := make(chan string, 2), make(chan string, 2)
			mux := http.NewServeMux()
			mux.HandleFunc("POST /files/{name}", func(_ http.ResponseWriter, r *http.Request) {
				if err := r.ParseMultipartForm(1); err != nil {
					t.Error(err)
					return
				}
				f, err := r.MultipartForm.File["f"][0].Open()
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				files <- f.(*os.File).Name()
			})
			inner := limited(mux)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { patterns <- r.Pattern }()
				inner.ServeHTTP(w, r)
			}))
			for range 2 {
				var form bytes.Buffer
				w := multipart.NewWriter(&form)
				part, _ := w.CreateFormFile("f", "f")
				part.Write(make([]byte, 11<<20)) // beyond what is kept in memory in any case
				w.Close()
				answer, err := http.Post(s.URL+"/files/a", w.FormDataContentType(), &form)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
			}
			s.Close() // waits for what comes after the handlers
			for range 2 {
				if name := <-files; name == "" {
					t.Error("the upload had no file")
				} else if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", name, err)
					os.Remove(name)
				}
				if pattern := <-patterns; pattern != "POST /files/{name}" {
					t.Errorf("pattern %q", pattern)
				}
			}
		})
	}
}

// TestTheInnermostPatternIsCopiedBack: as without the middleware, whoever logs outside sees the route and not only the prefix.
func TestTheInnermostPatternIsCopiedBack(t *testing.T) {
	t.Parallel()
	inner, outer := http.NewServeMux(), http.NewServeMux()
	inner.Handle("GET /things/{id}", hello)
	outer.Handle("/things/", checkThenRecord(t, dial(t, natsURL), 10)(inner))
	r := httptest.NewRequest("GET", "/things/7", nil)
	if outer.ServeHTTP(httptest.NewRecorder(), r); r.Pattern != "GET /things/{id}" {
		t.Errorf("pattern %q", r.Pattern)
	}
}

// recovering is a handler that ends a panic of its handler, as package http does.
func recovering(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }()
		h.ServeHTTP(w, r)
	})
}

func TestOnlyCompletedWorkIsCharged(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		charged int64
	}{
		"created":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }, 1},
		"nothing written": {func(http.ResponseWriter, *http.Request) {}, 1},
		"body alone":      {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") }, 1},
		"copied":          {func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, strings.NewReader("x")) }, 1},
		"broken copy, then 502": {func(w http.ResponseWriter, _ *http.Request) {
			if _, err := io.Copy(w, iotest.ErrReader(io.ErrUnexpectedEOF)); err != nil {
				w.WriteHeader(502)
			}
		}, 0},
		"empty copy, then 502": {func(w http.ResponseWriter, _ *http.Request) {
			io.Copy(w, iotest.DataErrReader(strings.NewReader("")))
			w.WriteHeader(502)
		}, 0},
		"broken in the copy": {func(w http.ResponseWriter, _ *http.Request) {
			io.Copy(w, iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("xy"))))
			w.WriteHeader(502)
		}, 1},
		"hints, then 201": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(201) }, 1},
		"hints, then 404": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(404) }, 0},
		"bad request":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, 0},
		"error":           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); w.WriteHeader(200) }, 0},
		"cost 7":          {func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 7) }, 7},
		"cost 0":          {func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 0) }, 0},
		"cost below 0":    {func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), -1) }, 0},
		"101, panic":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(101); panic(http.ErrAbortHandler) }, 1},
		"past any cost":   {func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 2*limits.MaxAmount) }, 10},
		"past the limit":  {func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 11) }, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := get(recovering(checkThenRecord(t, c, 10)(tt.handler)))
			if got := w.Header().Get("X-RateLimit-Remaining"); got != "10" {
				t.Errorf("X-RateLimit-Remaining %q, want the state before: 10", got)
			}
			if got := 10 - remaining(t, c, 10, "1h"); got != tt.charged {
				t.Errorf("charged %d, want %d", got, tt.charged)
			}
		})
	}
}

// TestWorkThatTimedOutIsNotCharged if the http.TimeoutHandler is inside, as the documentation of Charge recommends.
func TestWorkThatTimedOutIsNotCharged(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	givesUp := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	w := get(checkThenRecord(t, c, 10)(http.TimeoutHandler(givesUp, 50*time.Millisecond, "too late")))
	if left := remaining(t, c, 10, "1h"); w.Code != 503 || left != 10 {
		t.Errorf("status %d, remaining %d; want 503 and 10", w.Code, left)
	}
}

func TestCheckedRequestOverLimitDoesNoWork(t *testing.T) {
	t.Parallel()
	ran := 0
	h := checkThenRecord(t, dial(t, natsURL), 2)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ }))
	if got := statuses(4, h); got != "200 200 429 429" || ran != 2 {
		t.Errorf("statuses %s, ran %d times", got, ran)
	}
}

// An invalid id is refused before the work, whether the middleware fails open or closed.
func TestInvalidIDIsRefusedBeforeWork(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	for _, closed := range []bool{false, true} {
		ran := 0
		h := httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 2, "1h"), Mode: httplimit.CheckThenRecord,
			ID: func(r *http.Request) string { return r.Header.Get("Idempotency-Key") }, Deadline: patient, FailClosed: closed,
			OnError: func(*http.Request, error) {},
		})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ }))
		for _, id := range []string{strings.Repeat("i", 129), "a\xff", "a\tb", strings.Repeat("i", limits.MaxRequestBytes)} {
			if got := get(h, header("Idempotency-Key", id)).Code; got != 400 || ran != 0 {
				t.Errorf("id of %d bytes, fail closed %v: status %d, want 400; the handler ran %d times", len(id), closed, got, ran)
			}
		}
	}
}

// If another request has used the id, this one is not a repeat. Only the charge can tell, so the request is charged without an id.
func TestReusedIDDoesNotAvoidCharge(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	other := limits.Per(key(t)+":other", 9, "1h")
	other.ID = key(t)
	if _, err := c.Consume(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	h := httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 2, "1h"), Mode: httplimit.CheckThenRecord,
		ID: httplimit.Header("Idempotency-Key"), Deadline: patient, FailClosed: true,
		OnError: func(_ *http.Request, err error) { t.Error(err) }})(hello)
	if got := statuses(4, h, header("Idempotency-Key", other.ID)); got != "200 200 429 429" {
		t.Errorf("statuses %s, want 200 200 429 429", got)
	}
}

// Whatever middleware is inside, SetCost applies to the innermost one that charges afterwards.
func TestSetCostAppliesToInnermostRecorder(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	ordinary := httplimit.Middleware(c, httplimit.Config{Deadline: patient, FailClosed: true,
		Limits: func(*http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{limits.Per(key(t)+":requests", 100, "1h").LimitSpec}
		}})
	after := checkThenRecord(t, c, 100)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 7) })
	get(after(ordinary(handler)))
	if got := remaining(t, c, 100, "1h"); got != 93 {
		t.Errorf("around another limiter: %d of 100 left, want 93", got)
	}
	get(ordinary(after(handler)))
	if got := remaining(t, c, 100, "1h"); got != 86 {
		t.Errorf("inside of another limiter: %d of 100 left, want 86", got)
	}
}

// A copied body arrives whole, however long it is.
func TestCopiedBodyIsComplete(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	for _, size := range []int{0, 1, 511, 512, 513, 100_000} {
		body := "<!DOCTYPE html>" + strings.Repeat("x", size)
		w := get(checkThenRecord(t, c, 100)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(body)}); n != int64(len(body)) || err != nil {
				t.Errorf("%d bytes: copied %d, %v", len(body), n, err)
			}
		})))
		if w.Body.String() != body || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%d bytes: got %d, %s", len(body), w.Body.Len(), w.Header().Get("Content-Type"))
		}
	}
}

// A panic is not recovered, and work that was done before it is charged.
func TestPanicDoesNotAvoidCharge(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	for name, tt := range map[string]struct {
		before  func(http.ResponseWriter)
		charged int64
	}{
		"after 200":      {func(w http.ResponseWriter) { w.WriteHeader(200) }, 1},
		"after 201":      {func(w http.ResponseWriter) { w.WriteHeader(201) }, 1},
		"after a hint":   {func(w http.ResponseWriter) { w.WriteHeader(103) }, 0},
		"after a flush":  {func(w http.ResponseWriter) { w.(http.Flusher).Flush() }, 1},
		"in a copy":      {func(w http.ResponseWriter) { io.Copy(w, &panicking{}) }, 1},
		"before a thing": {func(http.ResponseWriter) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := checkThenRecord(t, c, 10)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				tt.before(w)
				panic(http.ErrAbortHandler)
			}))
			func() {
				defer func() {
					if got := recover(); got != http.ErrAbortHandler {
						t.Errorf("recovered %v", got)
					}
				}()
				get(h)
			}()
			if got := 10 - remaining(t, c, 10, "1h"); got != tt.charged {
				t.Errorf("charged %d, want %d", got, tt.charged)
			}
		})
	}
}

// panicking is a reader that panics after its first byte.
type panicking struct{ began bool }

func (p *panicking) Read([]byte) (int, error) {
	if p.began {
		panic(http.ErrAbortHandler)
	}
	p.began = true
	return 1, nil
}

func TestTheHandlerSeesTheDecision(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if reply, ok := httplimit.ReplyFrom(r.Context()); !ok || reply.Limit != 3 || reply.Remaining != 2 {
			t.Errorf("reply %+v, %v", reply, ok)
		}
	})
	get(httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 3, "1h"), Deadline: patient})(handler))
	if reply, ok := httplimit.ReplyFrom(t.Context()); ok {
		t.Errorf("a reply without a middleware: %+v", reply)
	}
	httplimit.SetCost(t.Context(), 3) // nothing to set, and no panic
}

func TestChargeBehind(t *testing.T) {
	t.Parallel()
	url, requests := silentService(t, "limits.*", `{"allowed":true}`)
	failed := make(chan error, 1)
	h := httplimit.Middleware(dial(t, url), httplimit.Config{
		Policy: httplimit.Text("jobs"), ID: httplimit.Text("job-7"), Mode: httplimit.CheckThenRecord, ChargeBehind: true,
		OnError: func(_ *http.Request, err error) { failed <- err },
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { httplimit.SetCost(r.Context(), 7) }))
	get(h)
	if got := <-requests; got != `{"policy":"jobs","id":"job-7"}` {
		t.Errorf("checked %s", got)
	}
	select {
	case got := <-requests:
		if got != `{"policy":"jobs","cost":7,"id":"job-7"}` {
			t.Errorf("recorded %s", got)
		}
	case err := <-failed:
		t.Error(err)
	}
}

func TestLostChargeIsReported(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		failed := make(chan error, 1)
		url, _ := silentService(t, limits.SubjectCheck, `{"allowed":true}`) // and nobody who records
		h := httplimit.Middleware(dial(t, url), httplimit.Config{
			Limits: inline(t, 10, "1h"), Mode: httplimit.CheckThenRecord, ChargeBehind: behind, Deadline: patient,
			OnError: func(_ *http.Request, err error) { failed <- err },
		})(hello)
		if w := get(h); w.Code != 200 {
			t.Errorf("status %d: what was done is done", w.Code)
		}
		var e *limits.Error
		if err := <-failed; !errors.Is(err, httplimit.ErrNotCharged) || !errors.As(err, &e) || e.Code != limits.CodeUnavailable {
			t.Errorf("behind %v: %v", behind, err)
		}
	}
}

// Handlers find the same optional interfaces of their ResponseWriter as without the middleware.
func TestResponseWriterKeepsOptionalInterfaces(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	limited := checkThenRecord(t, c, 10)
	server := httptest.NewServer(limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no io.ReaderFrom")
		}
		if _, ok := w.(http.Flusher); !ok {
			t.Error("no http.Flusher")
		}
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Errorf("http.ResponseController does not find the writer: %v", err)
		}
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\n\r\n")
		buffer.Flush()
	})))
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: example\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "101") {
		t.Errorf("answer %q, error %v", line, err)
	}
	server.Close()
}

func TestUnflushableWriterIsNotAFlusher(t *testing.T) {
	t.Parallel()
	h := checkThenRecord(t, dial(t, natsURL), 10)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(http.Flusher); ok {
			t.Error("an http.Flusher over a writer that is not one")
		}
		if _, ok := w.(http.Hijacker); ok {
			t.Error("an http.Hijacker over a writer that is not one")
		}
	}))
	h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
}

// unwrapping is the writer of a middleware that has only Unwrap besides writing.
type unwrapping struct{ http.ResponseWriter }

func (u unwrapping) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// noted is a writer, and what is charged in total after a request was answered on it.
type noted struct {
	writer  http.ResponseWriter
	charged int64
}

// wantNoted runs a handler that acts on one writer after the other and then panics if it succeeded. It is charged if the recorder
// noticed the act.
func wantNoted(t *testing.T, act func(*http.ResponseController) error, writers []noted) {
	t.Helper()
	c := dial(t, natsURL)
	h := checkThenRecord(t, c, 10)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if act(http.NewResponseController(w)) == nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	for _, tt := range writers {
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(tt.writer, httptest.NewRequest("GET", "/", nil))
		}()
		if got := 10 - remaining(t, c, 10, "1h"); got != tt.charged {
			t.Errorf("%T: charged %d so far, want %d", tt.writer, got, tt.charged)
		}
	}
}

// A successful flush begins the response, whichever writer performs it. A flush that is not supported does not.
func TestFlushIsDetectedOnAnyWriter(t *testing.T) {
	t.Parallel()
	wantNoted(t, (*http.ResponseController).Flush, []noted{
		{struct{ http.ResponseWriter }{httptest.NewRecorder()}, 0},
		{unwrapping{struct{ http.ResponseWriter }{httptest.NewRecorder()}}, 0},
		{unwrapping{httptest.NewRecorder()}, 1},
		{httptest.NewRecorder(), 2},
	})
}

// hijackable is a writer whose connection can be hijacked.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

// taken is a writer whose connection can no longer be hijacked.
type taken struct{ *httptest.ResponseRecorder }

func (taken) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrHijacked }

// A hijacked connection counts as 200, however the handler ends. A failed hijack does not.
func TestHijackIsDetectedOnAnyWriter(t *testing.T) {
	t.Parallel()
	hijack := func(c *http.ResponseController) error {
		_, _, err := c.Hijack()
		return err
	}
	wantNoted(t, hijack, []noted{
		{httptest.NewRecorder(), 0},
		{unwrapping{httptest.NewRecorder()}, 0},
		{taken{httptest.NewRecorder()}, 0},
		{unwrapping{hijackable{httptest.NewRecorder()}}, 1},
		{struct { // one that cannot flush
			http.ResponseWriter
			http.Hijacker
		}{httptest.NewRecorder(), hijackable{}}, 2},
		{hijackable{httptest.NewRecorder()}, 3},
	})
}

// goneWriter is a writer whose client has gone.
type goneWriter struct{ *httptest.ResponseRecorder }

func (goneWriter) FlushError() error { return net.ErrClosed }

func TestFlushErrorIsReturned(t *testing.T) {
	t.Parallel()
	h := checkThenRecord(t, dial(t, natsURL), 10)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("flushed with %v, want what the writer beneath said", err)
		}
	}))
	h.ServeHTTP(goneWriter{httptest.NewRecorder()}, httptest.NewRequest("GET", "/", nil))
}
