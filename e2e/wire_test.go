package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// moments matches the numbers that depend on when a test runs.
var moments = regexp.MustCompile(`("reset":|"retryAfter":|try again in )\d+[0-9a-z ]*`)

func masked(b []byte) string { return moments.ReplaceAllString(string(b), "${1}#") }

func TestTheWire(t *testing.T) {
	t.Parallel()
	steps := []struct{ subject, body, want string }{
		{"limits.status", `{"key":"api:user:123"}`, `{"key":"api:user:123","counters":[]}`},
		{"limits.consume", `{"key":"api:user:123","limit":2,"window":"1m","cost":1}`,
			`{"allowed":true,"key":"api:user:123","name":"1m","limit":2,"remaining":1,"reset":#}`},
		{"limits.check", `{"key":"api:user:123","limit":2,"window":"1m"}`,
			`{"allowed":true,"key":"api:user:123","name":"1m","limit":2,"remaining":1,"reset":#}`},
		{"limits.consume", `{"key":"api:user:123","limit":2,"window":"1m"}`,
			`{"allowed":true,"key":"api:user:123","name":"1m","limit":2,"remaining":0,"reset":#}`},
		{"limits.consume", `{"key":"api:user:123","limit":2,"window":"1m"}`,
			`{"allowed":false,"key":"api:user:123","name":"1m","limit":2,"remaining":0,"reset":#,"retryAfter":#,"blockedBy":"1m","message":"2 of 2 used in 1m; try again in #"}`},
		{"limits.consume", `{"key":"api:user:123","limit":2,"window":"1m","cost":3}`,
			`{"allowed":false,"key":"api:user:123","name":"1m","limit":2,"remaining":0,"reset":#,"blockedBy":"1m","message":"cost 3 is more than the 2 allowed in 1m; it can never fit"}`},
		{"limits.refund", `{"key":"api:user:123","limit":2,"window":"1m"}`,
			`{"allowed":true,"key":"api:user:123","name":"1m","limit":2,"remaining":1,"reset":#}`},
		{"limits.record", `{"key":"api:user:123","limit":2,"window":"1m","cost":2}`,
			`{"allowed":false,"key":"api:user:123","name":"1m","limit":2,"remaining":0,"reset":#,"retryAfter":#,"blockedBy":"1m","message":"3 of 2 used in 1m; recorded past the limit"}`},
		{"limits.status", `{"key":"api:user:123"}`,
			`{"key":"api:user:123","counters":[{"name":"1m","algorithm":"sliding_window","limit":2,"window":"1m","used":3,"remaining":0,"reset":#}]}`},
		{"limits.consume", `{"limits":[{"key":"global","limit":1000,"window":"1h"},{"key":"ip:ab12","limit":5,"window":"1h","algorithm":"token_bucket","burst":2}]}`,
			`{"allowed":true,"key":"ip:ab12","name":"1h","limit":5,"remaining":6,"reset":#,"limits":[` +
				`{"name":"1h","key":"global","algorithm":"sliding_window","limit":1000,"window":"1h","remaining":999,"reset":#,"allowed":true},` +
				`{"name":"1h","key":"ip:ab12","algorithm":"token_bucket","limit":5,"window":"1h","remaining":6,"reset":#,"allowed":true}]}`},
		{"limits.consume", `{"limits":[{"key":"global","limit":1000,"window":"1h"},{"key":"ip:ab12","limit":5,"window":"1h","algorithm":"token_bucket","burst":2}],"cost":7}`,
			`{"allowed":false,"key":"ip:ab12","name":"1h","limit":5,"remaining":6,"reset":#,"retryAfter":#,"blockedBy":"1h","message":"1 of 7 tokens used, not enough left for cost 7; try again in #","limits":[` +
				`{"name":"1h","key":"global","algorithm":"sliding_window","limit":1000,"window":"1h","remaining":999,"reset":#,"allowed":true},` +
				`{"name":"1h","key":"ip:ab12","algorithm":"token_bucket","limit":5,"window":"1h","remaining":6,"reset":#,"allowed":false,"retryAfter":#}]}`},
		{"limits.consume", `{"attributes":{"ip":"203.0.113.9"}}`, `{"allowed":true,"limit":0,"remaining":0,"reset":#,"limits":[]}`},
		{"limits.admin.list", `{"prefix":"api:","max":1}`,
			`{"counters":[{"key":"api:user:123","name":"1m","algorithm":"sliding_window","limit":2,"window":"1m","used":3,"remaining":0,"reset":#}]}`},
		{"limits.admin.reset", `{"prefix":"api:","dryRun":true}`, `{"reset":#}`},
		{"limits.admin.reset", `{"key":"api:user:123"}`, `{"reset":#}`},
		{"limits.status", `{"key":"api:user:123"}`, `{"key":"api:user:123","counters":[]}`},
		{"limits.consume", `{"key":"paid","limit":5,"window":"month","id":"a"}`,
			`{"allowed":true,"key":"paid","name":"month","limit":5,"remaining":4,"reset":#}`},
		{"limits.consume", `{ "id":"a", "window":"month", "limit":5, "key":"paid", "cost":1 }`,
			`{"allowed":true,"key":"paid","name":"month","limit":5,"remaining":4,"reset":#}`},
	}
	everywhere(t, func(t *testing.T, env []string) {
		nc := connect(t, start(t, env...).nats)
		for _, s := range steps {
			msg := request(t, nc, s.subject, s.body)
			if got := masked(msg.Data); got != s.want {
				t.Errorf("%s %s\ngot  %s\nwant %s", s.subject, s.body, got, s.want)
			}
			if msg.Header.Get(micro.ErrorCodeHeader) != "" {
				t.Errorf("%s %s: headers %v; a denial is no error", s.subject, s.body, msg.Header)
			}
		}
	})
}

func TestErrorsOnTheWire(t *testing.T) {
	t.Parallel()
	limit := `{"key":"k","limit":1,"window":"1m"}`
	many := fmt.Sprintf(`{"limits":[%s]}`, strings.TrimSuffix(strings.Repeat(limit+",", 17), ","))
	everywhere(t, func(t *testing.T, env []string) {
		nc := connect(t, start(t, env...).nats)
		request(t, nc, "limits.consume", `{"key":"k","limit":1,"window":"1m","id":"used"}`)
		for _, s := range []struct{ body, status, code, field string }{
			{`{"key":"k","limit":1,"window":"1x"}`, "400", "invalid_window", "window"},
			{`{"key":"k","limit":1,"window":"1m","cost":0}`, "400", "invalid_cost", "cost"},
			{`{"key":"k","limit":1,"window":"1m","colour":"red"}`, "400", "unknown_field", "colour"},
			{`{"key":"k","limit":1,"window":"1m","limits":[` + limit + `]}`, "400", "mixed_forms", "limits"},
			{`{"limits":[{"key":"k","limit":1,"window":"1h"},{"key":"k","limit":1000000001,"window":"1m"}]}`, "400", "invalid_limit", "limits[1].limit"},
			{`{"key":"k"`, "400", "invalid_json", ""},
			{`{"policy":"none"}`, "404", "unknown_policy", "policy"},
			{`{"key":"k","limit":1,"window":"1m","id":"used","cost":2}`, "409", "id_conflict", "id"},
			{many, "413", "too_many_limits", "limits"},
			{`{"key":"` + strings.Repeat("k", 17<<10) + `"}`, "413", "too_large", ""},
		} {
			msg := request(t, nc, limits.SubjectConsume, s.body)
			body := fmt.Sprintf(`{"error":{"code":%q,`, s.code)
			if s.field != "" {
				body += fmt.Sprintf(`"field":%q,`, s.field)
			}
			if got := msg.Header.Get(micro.ErrorCodeHeader); got != s.status || !strings.HasPrefix(string(msg.Data), body+`"message":"`) {
				t.Errorf("%.90s: %s %s; want %s %s…", s.body, got, msg.Data, s.status, body)
			}
			if msg.Header.Get(micro.ErrorHeader) == "" {
				t.Errorf("%.90s: no %s header", s.body, micro.ErrorHeader)
			}
		}
	})
}

func TestARefundOnOneWorkerEndsADenialRememberedByAnother(t *testing.T) {
	t.Parallel()
	cluster := natsWithoutLead(t)
	env := []string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + cluster.ClientURL()}
	start(t, env...)
	start(t, env...)
	nc := connect(t, cluster.ClientURL())
	const body = `{"key":"k","limit":1,"window":"1h"}`
	decide(t, nc, limits.SubjectConsume, body)
	for range 50 { // so that both workers have denied it
		if r := decide(t, nc, limits.SubjectConsume, body); r.Allowed {
			t.Fatal("allowed past the limit")
		}
	}
	told, err := nc.SubscribeSync("limits.internal.forget")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	decide(t, nc, limits.SubjectRefund, body)
	if msg, err := told.NextMsg(patience); err != nil || string(msg.Data) != `{"key":"k","name":"1h"}` {
		t.Fatalf("told %v, %v", msg, err)
	}
	eventually(t, func() error {
		if r := decide(t, nc, limits.SubjectConsume, body); !r.Allowed {
			return fmt.Errorf("denied after the refund: %+v", r)
		}
		return nil
	})
}

// TestHealthAndMetrics requests the pages of the real program.
func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env []string) {
		w := start(t, env...)
		decide(t, connect(t, w.nats), limits.SubjectConsume, `{"key":"k","limit":1,"window":"1m"}`)
		for path, want := range map[string]string{
			"/livez":   "ok",
			"/readyz":  `"ready":true`,
			"/metrics": `limits_decisions_total{algorithm="sliding_window",result="allowed",verb="consume"} 1`,
			"/schemas/events/limits.exceeded.v1.json": `"denied"`,
		} {
			resp, err := http.Get("http://" + w.http + path)
			if err != nil {
				t.Fatal(err)
			}
			var body strings.Builder
			if err := resp.Write(&body); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !strings.Contains(body.String(), want) {
				t.Errorf("%s: %s without %s", path, resp.Status, want)
			}
		}
	})
}
