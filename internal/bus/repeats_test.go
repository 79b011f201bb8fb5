package bus

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestCachedRequestsDecodeTheSame: a decoder with a full cache reads each request as a new one
// does.
func TestCachedRequestsDecodeTheSame(t *testing.T) {
	bodies := []string{
		hot, hot + " ", with(`"cost":3`), with(`"consistency":"leased"`), with(`"id":"x"`), with(`"cost":0`), items(1), items(2),
		items(limits.MaxLimits), `{"\u006bey":"é","limit":1,"window":"day","timezone":"Europe/Berlin"}`,
		`{"attributes":{"ip":"x"}}`, `{"limits":[` + item(1) + `],"id":"x"}`, hot + strings.Repeat(" ", maxCachedBody), ``,
	}
	verbs := []engine.Verb{engine.Consume, engine.Check, engine.Record, engine.Refund}
	fresh := testDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		d, _ := newDecoder(0.1)
		for range 100 {
			data := []byte(rapid.SampledFrom(bodies).Draw(t, "body"))
			verb := rapid.SampledFrom(verbs).Draw(t, "verb")
			var got, want engine.Request
			_, _, wantErr := fresh.parse(verb, bytes.Clone(data), &want) // which remembers nothing
			err := d.decode(verb, data, nil, &got)
			clear(data) // it is the connection's
			for i := range got.Limits {
				got.Limits[i].Ref = nil // says nothing of what is asked
			}
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
				t.Fatalf("%s %s\n got  %+v, %v\n want %+v, %v", verb, data, got, err, want, wantErr)
			}
		}
	})
}

// TestRequestsAreCachedWhenTheyComeTwiceInARow checks what is cached, and what a lookup returns.
func TestRequestsAreCachedWhenTheyComeTwiceInARow(t *testing.T) {
	d := testDecoder(t)
	var ref *engine.Ref
	for i, known := range []bool{false, false, true, true} {
		data := []byte(hot)
		if got := isCached(d, data); got != known {
			t.Fatalf("before request %d it is known: %t, want %t", i+1, got, known)
		}
		var r engine.Request
		if err := d.decode(engine.Consume, data, nil, &r); err != nil {
			t.Fatal(err)
		}
		if i == 3 && (ref == nil || r.Limits[0].Ref != ref) {
			t.Error("a repeat has not the Ref of the one before")
		}
		ref = r.Limits[0].Ref
		// A request is the engine's, and its bytes are the connection's: neither may be what is remembered.
		r.Limits[0].Key = "another"
		clear(data)
	}
	for _, body := range []string{with(`"id":"x"`), `{"attributes":{"ip":"x"}}`, items(limits.MaxLimits)} {
		var r engine.Request
		for range 3 {
			if err := d.decode(engine.Check, []byte(body), nil, &r); err != nil {
				t.Fatal(err)
			}
		}
		if isCached(d, []byte(body)) {
			t.Errorf("%s is remembered", body)
		}
	}
}

// isCached reports whether a body is in the cache, with what it decodes to now.
func isCached(d *decoder, data []byte) bool {
	at := d.cache.locate(data)
	at.search(data)
	return at.hit != nil && d.holds(at.hit.by.Load())
}

// TestBodiesOfOneHashAreToldApart: a body is answered as what it says and not as another, and a set has room for two.
func TestBodiesOfOneHashAreToldApart(t *testing.T) {
	t.Parallel()
	at := cacheLookup{set: new(cacheSet), hash: 7 << 32}
	body := func(key string) []byte { return []byte(`{"key":"` + key + `"}`) }
	known := func(data []byte) bool {
		found := cacheLookup{set: at.set, hash: at.hash}
		found.search(data)
		if found.hit != nil && found.hit.limits[0].Key != string(data) {
			t.Errorf("%s is taken for %s", data, found.hit.limits[0].Key)
		}
		return found.hit != nil
	}
	store := func(data []byte, n int) {
		req := engine.Request{Limits: make([]engine.Limit, n)}
		for i := range req.Limits {
			req.Limits[i].Key = string(data)
		}
		for n := 0; n < 2 && !known(data); n++ {
			at.store(data, &req, resolvedBy{}, nil)
		}
	}
	store(body("a"), 1)
	if known(body("b")) || !known(body("a")) {
		t.Error("b is known, or a is not")
	}
	long := maxCachedBody - len(body(""))
	store(body(strings.Repeat("x", long+1)), 1)
	store(body("y"), maxCachedLimits+1)
	if known(body(strings.Repeat("x", long+1))) || known(body("y")) {
		t.Error("what is too large is kept")
	}
	store(body(strings.Repeat("z", long)), maxCachedLimits)
	if !known(body(strings.Repeat("z", long))) || !known(body("a")) {
		t.Error("one of two is not known")
	}
}
