package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/httplimit"
)

// Unusual characters in file names and form fields are no reason to refuse a request, whether or not a policy limits by them.
func TestUnprintableCharactersAreURLEscaped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Bildschirmfoto um 9.41\u202fAM.png": "Bildschirmfoto um 9.41%E2%80%AFAM.png", // as macOS names screenshots
		"می\u200cخواهم":                      "می%E2%80%8Cخواهم",
		"東京\u3000大阪":                         "東京%E3%80%80大阪",
		"a\u00a0b":                           "a%C2%A0b",
		"👩\u200d💻":                           "👩%E2%80%8D💻",
		"M\xfcller":                          "M%FCller",
		"two\nlines":                         "two%0Alines",
		"a\tb":                               "a%09b",
		"\ufffd, 100 % as it is, %0a":        "\ufffd, 100 % as it is, %0a",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.Path, r.URL.RawQuery = "/"+text, url.Values{"q": {text}}.Encode()
		r.Header.Set("User-Agent", text)
		r.SetPathValue("file", text)
		attributes := map[string]httplimit.Attribute{
			"path": httplimit.Path(), "query": httplimit.Query("q"), "agent": httplimit.Header("User-Agent"), "file": httplimit.PathValue("file"),
		}
		for name, attribute := range attributes {
			if got := strings.TrimPrefix(attribute(r), "/"); got != want {
				t.Errorf("%s of %q is %q, want %q", name, text, got, want)
			}
		}
		w := httptest.NewRecorder()
		httplimit.Middleware(dial(t, natsURL), httplimit.Config{Attributes: attributes, Deadline: patient, FailClosed: true})(hello).ServeHTTP(w, r)
		if w.Code != 200 {
			t.Errorf("%q: status %d: %s", text, w.Code, w.Body)
		}
	}
}

// TestEncodedValuesMayBe256BytesLong: a longer one is refused, as any longer value is. To cut it, or to hash it, would give
// different users one limit, or one user another name in what is stored and shown.
func TestEncodedValuesMayBe256BytesLong(t *testing.T) {
	t.Parallel()
	limited := httplimit.Middleware(dial(t, natsURL), httplimit.Config{
		Attributes: map[string]httplimit.Attribute{"user": httplimit.Header("X-User")}, Deadline: patient})(hello)
	for value, want := range map[string]int{
		strings.Repeat("\xe9", 85): http.StatusOK, strings.Repeat("\xe9", 86): http.StatusBadRequest,
		strings.Repeat("e", 256): http.StatusOK, strings.Repeat("e", 257): http.StatusBadRequest,
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", value)
		if limited.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%d bytes of %q: status %d, want %d: %s", len(value), value[:1], w.Code, want, w.Body)
		}
	}
}

// TestHostIsAHeader, although net/http keeps it elsewhere.
func TestHostIsAHeader(t *testing.T) {
	t.Parallel()
	hosts := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- httplimit.Header("host")(r) }))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "Shop.example:8443"
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-hosts; got != "Shop.example:8443" {
		t.Errorf("the host is %q", got)
	}
}

// TestRoutes: GET and HEAD have the same route, and a request that the mux answers itself has none.
func TestRoutes(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.Handle("GET /things/{id}", hello)
	route := httplimit.Or(httplimit.RouteIn(mux), httplimit.Text("none"))
	for request, want := range map[string]string{
		"GET /things/7": "GET /things/{id}", "HEAD /things/7": "GET /things/{id}", "POST /things/7": "none", "GET /nothing": "none",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := route(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s: route %q, want %q", request, got, want)
		}
	}
}
