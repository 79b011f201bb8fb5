package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestTop(t *testing.T) {
	var asked string
	url := respond(t, limits.SubjectTop, func(request string) *nats.Msg {
		asked = request
		return text(`{"since":1,"until":2,"rows":[{"key":"api:user:7","policy":"chat","user":"7","allowed":3,"denied":40,"cost":9,"peak":12},` +
			`{"key":"","allowed":1,"denied":1,"cost":1,"peak":2}]}`)("")
	})
	want := `KEY           POLICY  USER  DENIED  ALLOWED  COST  PEAK
api:user:7    chat    7     40      3        9     12
(other keys)  -       -     1       1        1     2
`
	i := limiter(t, "top", "--by", "used", "--since", "2h", "--policy", "chat", "--prefix", "api:", "--user", "7", "--max", "5", "--nats-url", url)
	if d := cmp.Diff(want, i.out.String()); d != "" {
		t.Error(d)
	}
	if want := `{"by":"used","period":"2h","policy":"chat","prefix":"api:","user":"7","max":5}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	limiter(t, "top", "--json", "--nats-url", url).want(t, exitDone, `"rows":[{`, "")
	if want := `{"by":"denied","period":"1h","max":20}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	url = respond(t, limits.SubjectTop, text(`{"rows":[]}`))
	limiter(t, "top", "--nats-url", url).want(t, exitDone, "nothing denied in the last 1h (counts are up to 15s behind)\n", "")
	// Who is not found may have been counted with others.
	url = respond(t, limits.SubjectTop, func(request string) *nats.Msg {
		if strings.Contains(request, `"user"`) {
			return text(`{"rows":[]}`)("")
		}
		return text(`{"rows":[{"key":"a","denied":9},{"key":"","allowed":4,"denied":11}]}`)("")
	})
	limiter(t, "top", "--user", "7", "--nats-url", url).want(t, exitDone,
		"nothing denied in the last 1h (counts are up to 15s behind)\n11 denied and 4 allowed were counted without their key, which may be one of these (limiter serve --usage-keys)\n", "")
	limiter(t, "top", "--by", "luck").want(t, exitUsage, "", "--by must be one of")
	limiter(t, "top", "--max", "0").want(t, exitUsage, "", "--max: 0 is not between 1 and 1000")
}

func TestUsageReports(t *testing.T) {
	for report, c := range map[string]struct{ reply, want string }{
		"traffic": {`{"since":1,"traffic":[{"key":"k","user":"u","requests":10,"errors":2}]}`,
			"KEY  USER  REQUESTS  ERRORS\nk    u     10        2\n"},
		"slowest": {`{"since":1,"slowest":[{"endpoint":"/a","method":"GET","requests":10,"mean":2.25,"p95":9,"max":40}]}`,
			"ENDPOINT  METHOD  REQUESTS  MEAN   P95  MAX\n/a        GET     10        2.2ms  9ms  40ms\n"},
		"errors": {`{"since":1,"errors":[{"endpoint":"/a","method":"GET","status":503,"requests":2}]}`,
			"ENDPOINT  METHOD  STATUS  REQUESTS\n/a        GET     503     2\n"},
	} {
		var asked string
		url := respond(t, limits.SubjectUsageReport, func(r string) *nats.Msg { asked = r; return text(c.reply)("") })
		if d := cmp.Diff(c.want, limiter(t, "usage", report, "--nats-url", url).out.String()); d != "" {
			t.Errorf("%s: %s", report, d)
		}
		if want := `{"report":"` + report + `","period":"24h","max":20}`; asked != want {
			t.Errorf("asked %s, want %s", asked, want)
		}
	}
	url := respond(t, limits.SubjectUsageReport, text(`{"since":1}`))
	limiter(t, "usage", "errors", "--nats-url", url).want(t, exitDone, "no errors in the last 24h\n", "")
	limiter(t, "usage", "weather").want(t, exitUsage, "", "must be one of")
}

// TestSettleAndTop tries both on the real service.
func TestSettleAndTop(t *testing.T) {
	data := t.TempDir()
	s := serve(t, "--data-dir", data)
	s.limiter(t, "consume jobs:acme --limit 100 --window 1h --cost 60 --id job-17").want(t, exitDone, "allowed\n", "")
	s.limiter(t, "settle job-17 --cost 25").want(t, exitDone, "75 ", "")
	s.limiter(t, "settle job-17 --cost 26").want(t, exitError, "", "409 id_conflict")
	s.limiter(t, "settle job-18 --cost 1").want(t, exitError, "", "404 unknown_id")
	s.limiter(t, "settle job-17").want(t, exitUsage, "", "--cost")
	s.limiter(t, "settle job-17 --cost=-1").want(t, exitUsage, "", "--cost: -1 is below 0")
	s.limiter(t, "consume jobs:acme --limit 100 --window 1h --cost 80").want(t, exitDenied, "denied", "")
	logLine(t, s.nats)
	s.stop() // so few are written every 5 seconds, or now
	s = serve(t, "--data-dir", data)
	// The peak is 1 if a minute ended between the two requests.
	s.limiter(t, "top").want(t, exitDone, "jobs:acme  -       acme  1       1        60    ", "")
	s.limiter(t, "usage traffic").want(t, exitDone, "key:acme  7     1         1\n", "")
	s.limiter(t, "usage slowest").want(t, exitDone, "/v1/items  GET     1         12.0ms", "")
	s.limiter(t, "usage errors").want(t, exitDone, "/v1/items  GET     503     1\n", "")
}

// logLine adds a line to the request log, as a server would.
func logLine(t *testing.T, url string) {
	t.Helper()
	nc := testenv.Connect(t, url)
	err := limits.NewClient(nc).LogRequest(limits.LogEntry{Key: "key:acme", User: "7", Endpoint: "/v1/items", Method: "GET", Status: 503, Millis: 12})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}
