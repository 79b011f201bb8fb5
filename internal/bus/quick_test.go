package bus

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed503877ad/limits"
)

// readBothWays reads data both ways. quick is nil if the quick path gives up, and strict if the
// data is refused.
func readBothWays(d *decoder, data []byte) (quick, strict *parsedRequest, err error) {
	read := func(read func(p *parser) bool) *parsedRequest {
		p := d.parsers.New().(*parser)
		p.reset()
		if !read(p) {
			return nil
		}
		return &p.parsedRequest
	}
	quick = read(func(p *parser) bool { return p.parseQuick(data) })
	strict = read(func(p *parser) bool {
		err = p.document(data, p.topMember)
		return err == nil
	})
	return quick, strict, err
}

// quickBodies are read by the quick path.
var quickBodies = []string{
	hot, items(1), items(limits.MaxLimits),
	" {\t\"key\" :\"a b\"\n,\"limit\": 1000000000\r, \"window\" : \"1m\" } ",
	with(`"burst":0,"cost":1000000000,"id":"x","name":"n","algorithm":"token_bucket","consistency":"leased"`),
	`{"key":"a","limit":1,"window":"day","timezone":"Europe/Berlin","anchor":"first_use"}`,
	`{"cost":3,"limits":[ {"key":"a","limit":1,"window":"1m","burst":2} , {"key":"a","name":"b"} ],"id":"x"}`,
	`{"key":"a","limits":[{"key":"a"}]}`, // both forms: what refuses it comes later, and is the same for both readers
	`{"id":"only"}`,
}

// slowBodies are left to the strict reader, whether it accepts them or not.
var slowBodies = []string{
	``, `{`, `{}`, `{"key":"a"`, `{"key":"a",}`, `{"key" "a"}`, `{"key":a}`, `{"limit":}`, `[]`, hot + `x`, hot + "\x00", "\xef\xbb\xbf" + hot,
	with(`"key":"b"`), with(`"cost":1,"cost":1`), with(`"id":"x","id":"x"`), with(`"timezone":"UTC","timezone":"UTC"`),
	items(limits.MaxLimits + 1), `{"limits":[]}`, `{"limits":[{}]}`, `{"limits":[{"key":"a"}],"limits":[{"key":"a"}]}`, `{"limits":[{"cost":1}]}`,
	`{"limits":[{"key":"a"},]}`, `{"limits":[{"key":"a"}`, `{"limits":{"key":"a"}}`,
	`{"\u006bey":"a","limit":1,"window":"1m"}`, `{"key":"a\n"}`, "{\"key\":\"a\nb\"}", "{\"key\":\"a\x7f\"}", `{"key":"é"}`, "{\"key\":\"\xff\"}",
	`{"key":""}`, `{"key":null}`, `{"key":5}`, `{"id":""}`, `{"key":"` + strings.Repeat("k", limits.MaxKeyBytes+1) + `"}`,
	`{"limit":0}`, `{"limit":01}`, `{"limit":1.0}`, `{"limit":1e3}`, `{"limit":-1}`, `{"limit":+1}`, `{"limit":1000000001}`,
	`{"limit":18446744073709551617}`, `{"limit":"1"}`, `{"cost":0}`, `{"burst":-0}`, `{"burst":00}`,
	`{"window":"1x"}`, `{"window":""}`, `{"algorithm":"leaky"}`, `{"timezone":"Mars/Base"}`, `{"anchor":"now"}`, `{"consistency":"eventual"}`,
	`{"policy":"p"}`, `{"attributes":{"a":"b"}}`, `{"tier":"t"}`, `{"foo":1}`, `{"Key":"a"}`, `{"":1}`,
	strings.Repeat(" ", limits.MaxRequestBytes) + hot,
}

func TestQuickParserReadsOnlySimpleRequests(t *testing.T) {
	d := testDecoder(t)
	for _, body := range quickBodies {
		if q, _, _ := readBothWays(d, []byte(body)); q == nil {
			t.Errorf("%s is not read quickly", body)
		}
	}
	for _, body := range slowBodies {
		if q, _, _ := readBothWays(d, []byte(body)); q != nil {
			t.Errorf("%s is read quickly, as %+v", body, q)
		}
	}
}

// FuzzQuick: what the quick path reads, the strict reader reads as the same request.
func FuzzQuick(f *testing.F) {
	for _, bodies := range [][]string{quickBodies, slowBodies} {
		for _, body := range bodies {
			f.Add([]byte(body))
		}
	}
	d := testDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		q, strict, err := readBothWays(d, data)
		if q != nil && (err != nil || !reflect.DeepEqual(q, strict)) {
			t.Fatalf("%q\n quick  %+v\n strict %+v, error %v", data, q, strict, err)
		}
	})
}

// TestQuickParserReadsClientRequests generates requests as the Go client writes them. The quick
// path reads every request of forms 1 and 2 in plain ASCII, with the result of the strict reader.
func TestQuickParserReadsClientRequests(t *testing.T) {
	d := testDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		r := limits.Request{Cost: rapid.Int64Range(0, limits.MaxAmount).Draw(t, "cost"), ID: rapid.StringMatching(`[!#-\[\]-~]{0,20}`).Draw(t, "id")}
		if rapid.Bool().Draw(t, "one") {
			r.LimitSpec = drawSpec(t)
		} else {
			r.Limits = rapid.SliceOfN(rapid.Custom(drawSpec), 1, limits.MaxLimits).Draw(t, "limits")
		}
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(r); err != nil {
			t.Fatal(err)
		}
		q, strict, err := readBothWays(d, []byte(b.String()))
		if err != nil || q == nil || !reflect.DeepEqual(q, strict) {
			t.Fatalf("%s\n quick  %+v\n strict %+v, error %v", b.String(), q, strict, err)
		}
	})
}

func drawSpec(t *rapid.T) limits.LimitSpec {
	oneOf := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(t, what) }
	return limits.LimitSpec{
		Key: rapid.StringMatching(`[ !#-\[\]-~]{1,60}`).Draw(t, "key"), Limit: rapid.Int64Range(1, limits.MaxAmount).Draw(t, "limit"),
		Window:    oneOf("window", "1m", "100ms", "366d", "day", "month"),
		Algorithm: oneOf("algorithm", "", limits.SlidingWindow, limits.FixedWindow, limits.TokenBucket),
		Burst:     rapid.Int64Range(0, limits.MaxAmount).Draw(t, "burst"), Name: rapid.StringMatching(`[ !#-\[\]-~]{0,60}`).Draw(t, "name"),
		Timezone: oneOf("timezone", "", "UTC", "Europe/Berlin"), Anchor: oneOf("anchor", "", "aligned", "first_use"),
		Consistency: oneOf("consistency", "", limits.Exact, limits.Leased),
	}
}
