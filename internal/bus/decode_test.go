package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
)

func testDecoder(tb testing.TB) *decoder {
	tb.Helper()
	d, err := newDecoder(0.1)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

const hot = `{"key":"api:user:123","limit":100,"window":"1m"}`

func item(n int) string { return fmt.Sprintf(`{"key":"k%d","limit":1,"window":"1m"}`, n) }

func items(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = item(i)
	}
	return `{"limits":[` + strings.Join(all, ",") + `]}`
}

func with(field string) string { return strings.TrimSuffix(hot, "}") + "," + field + "}" }

// TestDecodeAccepts decodes valid requests.
func TestDecodeAccepts(t *testing.T) {
	berlin := `{"key":"u:1:2","limit":29,"window":"day","timezone":"Europe/Berlin","cost":5,"id":"x"}`
	for _, c := range []struct{ body, want string }{
		{hot, `api:user:123/1m sliding_window 100+0 1m UTC first=false warn=10 user=123 cost=1 id=`},
		{" \n" + hot + "\t\n", `api:user:123/1m sliding_window 100+0 1m UTC first=false warn=10 user=123 cost=1 id=`},
		{`{"\u006bey":"a \"b\" é","limit":1,"window":"1\u006d"}`, `a "b" é/1m sliding_window 1+0 1m UTC first=false warn=0 user=a "b" é cost=1 id=`},
		{berlin, `u:1:2/day fixed_window 29+0 day Europe/Berlin first=false warn=2 user=2 cost=5 id=x`},
		{`{"key":"a:b","limit":10,"window":"month","timezone":"UTC"}`, `a:b/month fixed_window 10+0 month UTC first=false warn=1 user=b cost=1 id=`},
		{`{"key":"g","limit":10,"window":"1s","algorithm":"token_bucket","burst":5,"name":"n"}`, `g/n token_bucket 10+5 1s UTC first=false warn=1 user=g cost=1 id=`},
		{`{"key":"a:b:","limit":10,"window":"1s","algorithm":"fixed_window","anchor":"first_use"}`, `a:b:/1s fixed_window 10+0 1s UTC first=true warn=1 user=a:b: cost=1 id=`},
		{`{"key":"a:b:","limit":10,"window":"1s","algorithm":"fixed_window","anchor":"aligned"}`, `a:b:/1s fixed_window 10+0 1s UTC first=false warn=1 user=a:b: cost=1 id=`},
		{with(`"consistency":"leased"`), `api:user:123/1m sliding_window 100+0 1m UTC first=false warn=10 user=123 leased cost=1 id=`},
		{with(`"consistency":"exact"`), `api:user:123/1m sliding_window 100+0 1m UTC first=false warn=10 user=123 cost=1 id=`},
		{`{"limits":[` + item(1) + `,{"consistency":"leased","key":"b","limit":1,"window":"day"}]}`, `k1/1m sliding_window 1+0 1m UTC first=false warn=0 user=k1 b/day fixed_window 1+0 day UTC first=false warn=0 user=b leased cost=1 id=`},
		{`{"limits":[` + item(1) + `,` + item(2) + `],"cost":7}`, `k1/1m sliding_window 1+0 1m UTC first=false warn=0 user=k1 k2/1m sliding_window 1+0 1m UTC first=false warn=0 user=k2 cost=7 id=`},
		{`{"attributes":{"ip":"x"},"tier":"pro"}`, `cost=1 id=`},
		// As encoders of other languages write whole numbers.
		{`{"key":"g","limit":1e+09,"window":"1s","cost":2.0}`, `g/1s sliding_window 1000000000+0 1s UTC first=false warn=100000000 user=g cost=2 id=`},
		{`{"key":"g","limit":1.25E2,"window":"1s","algorithm":"token_bucket","burst":0.0}`, `g/1s token_bucket 125+0 1s UTC first=false warn=12 user=g cost=1 id=`},
	} {
		var r engine.Request
		if err := testDecoder(t).decode(engine.Consume, []byte(c.body), nil, &r); err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		var b strings.Builder
		for _, l := range r.Limits {
			zone := "UTC"
			if l.Zone != nil {
				zone = l.Zone.String()
			}
			fmt.Fprintf(&b, "%s/%s %s %d+%d %s %s first=%v warn=%d user=%s ",
				l.Key, l.Name, l.Algorithm, l.Limit, l.Burst, l.Window, zone, l.FirstUse, l.Threshold, l.User)
			if l.Leased {
				b.WriteString("leased ")
			}
		}
		fmt.Fprintf(&b, "cost=%d id=%s", r.Cost, r.ID)
		if b.String() != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.body, b.String(), c.want)
		}
	}
}

// TestFingerprint: which requests with one id count as the same.
func TestFingerprint(t *testing.T) {
	d := testDecoder(t)
	print := func(verb engine.Verb, body string) [32]byte {
		var r engine.Request
		if err := d.decode(verb, []byte(body), nil, &r); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return r.Fingerprint
	}
	base := print(engine.Consume, `{"key":"a","limit":1,"window":"day","id":"x"}`)
	for _, same := range []string{
		`{ "id":"x", "window":"day","limit":1, "key":"\u0061" }`,
		`{"key":"a","limit":1,"window":"day","id":"x","cost":1,"name":"day","algorithm":"fixed_window","timezone":"UTC"}`,
		`{"key":"a","limit":1,"window":"day","id":"x","consistency":"exact"}`,
		`{"key":"a","limit":1,"window":"day","id":"x","anchor":"aligned"}`,
		`{"limits":[{"key":"a","limit":1,"window":"day"}],"id":"x"}`,
		`{"key":"a","limit":1.0,"window":"day","id":"x"}`,
	} {
		if print(engine.Consume, same) != base {
			t.Errorf("%s is another request", same)
		}
	}
	for _, other := range []string{
		`{"key":"b","limit":1,"window":"day","id":"x"}`,
		`{"key":"a","limit":2,"window":"day","id":"x"}`,
		`{"key":"a","limit":1,"window":"day","id":"x","cost":2}`,
		`{"key":"a","limit":1,"window":"day","id":"x","anchor":"first_use"}`,
		`{"key":"a","limit":1,"window":"day","id":"x","timezone":"Europe/Berlin"}`,
		`{"key":"a","limit":1,"window":"day","id":"x","consistency":"leased"}`,
		`{"attributes":{},"id":"x"}`,
		`{"attributes":{"a":"b"},"id":"x"}`,
	} {
		if print(engine.Consume, other) == base {
			t.Errorf("%s is the same request", other)
		}
	}
	if print(engine.Refund, `{"key":"a","limit":1,"window":"day","id":"x"}`) == base {
		t.Error("a refund is the same request as a consume")
	}
	if print(engine.Check, `{"key":"a","limit":1,"window":"day","id":"x"}`) != [32]byte{} {
		t.Error("a check has an id")
	}
}

// FuzzDecode: nothing panics, what is accepted is within bounds, and encoding/json, which is laxer,
// reads the same from it.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(hot))
	f.Add([]byte(`{"key":"a","limit":1.0,"window":"1m"}`))
	for _, m := range mistakes {
		if len(m.body) < 2000 {
			f.Add([]byte(m.body))
		}
	}
	d, err := newDecoder(0.1)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r engine.Request
		if err := d.decode(engine.Consume, data, nil, &r); err != nil {
			checkRefusal(t, err)
			return
		}
		checkBounds(t, &r)
		var lax limits.Request
		var wrong *json.UnmarshalTypeError
		switch err := json.Unmarshal(data, &lax); {
		case errors.As(err, &wrong) && strings.ContainsAny(wrong.Value, ".eE"):
			return // 1.0 and 1e3 are whole numbers too, but not for encoding/json
		case err != nil:
			t.Fatalf("accepted, but %v: %s", err, data)
		}
		specs := lax.Limits
		if lax.Key != "" {
			specs = []limits.LimitSpec{lax.LimitSpec}
		}
		if len(specs) != len(r.Limits) || lax.ID != r.ID || max(lax.Cost, 1) != r.Cost {
			t.Fatalf("read %+v out of %s", r, data)
		}
		for i, s := range specs {
			if l := r.Limits[i]; s.Key != l.Key || s.Limit != l.Limit || s.Burst != l.Burst || s.Window != l.Window.String() {
				t.Fatalf("read %+v out of %s", l, data)
			}
		}
	})
}

func checkRefusal(t *testing.T, err error) {
	e, ok := err.(*limits.Error)
	if !ok || e.Code == "" || e.Message == "" || len(e.Message) > 1000 || !utf8.ValidString(e.Message) ||
		strings.ContainsAny(e.Message, "\r\n") || e.Status != 400 && e.Status != 404 && e.Status != 413 {
		t.Fatalf("refused with %#v", err)
	}
}

func checkBounds(t *testing.T, r *engine.Request) {
	ok := r.Cost >= 1 && r.Cost <= limits.MaxAmount && len(r.Limits) <= limits.MaxLimits && len(r.ID) <= limits.MaxIDBytes
	for i := range r.Limits {
		l := &r.Limits[i]
		_, key := policy.Unprintable(l.Key)
		_, name := policy.Unprintable(l.Name)
		ok = ok && l.Validate() == nil && !key && !name && l.Key != "" && len(l.Key) <= limits.MaxKeyBytes &&
			l.Name != "" && len(l.Name) <= limits.MaxNameBytes && l.Threshold <= l.Limit && l.User != ""
	}
	if !ok {
		t.Fatalf("accepted out of bounds: %+v", r)
	}
}

func BenchmarkDecode(b *testing.B) {
	d := testDecoder(b)
	b.Run("form1 again", func(b *testing.B) {
		b.ReportAllocs()
		data := []byte(hot)
		r := new(call)
		for b.Loop() {
			r.Request = engine.Request{Limits: r.oneLimit[:0]}
			if err := d.decode(engine.Consume, data, nil, &r.Request); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, c := range []struct{ name, body string }{
		{"form1", hot}, {"form1 with algorithm", with(`"algorithm":"sliding_window"`)}, {"form1 with id", with(`"cost":2,"id":"0123456789abcdef"`)}, {"form2 of 2", items(2)}, {"form2 of 16", items(16)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			data := []byte(c.body)
			r := new(call)
			for b.Loop() {
				r.Request = engine.Request{Limits: r.oneLimit[:0]}
				if _, _, err := d.parse(engine.Consume, data, &r.Request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("nested too deep", func(b *testing.B) {
		data := []byte(`{"key":` + strings.Repeat(`{"a":`, 3000))
		for b.Loop() {
			if _, _, err := d.parse(engine.Consume, data, new(engine.Request)); err == nil {
				b.Fatal("accepted")
			}
		}
	})
}
