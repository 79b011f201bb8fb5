package bus

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// cachedPolicies are policies whose limits depend on all that limits may depend on.
const cachedPolicies = `
attributes: [user, route]
policies:
  - name: night
    match: {route: [chat, mail]}
    limits: [{name: l, key: "night:{user}", limit: 100, window: 1m}, {name: day, key: "night:{user}", limit: 900, window: day}]
    tiers: {PRO: {l: {limit: 500}}}
    schedule:
      - {from: "00:01", to: "00:03", factor: 2}
      - {from: "00:05", to: "00:06", factor: 3}
      - {from: "00:07", to: "00:40", factor: 4}
  - name: named
    on_error: deny
    limits: [{name: l, key: "named:{user}", limit: 7, window: 1h, algorithm: token_bucket}]
  - name: tried
    mode: shadow
    match: {user: "*"}
    limits: [{name: l, key: "tried:{user}", limit: unlimited, window: 1h}]
`

func nextMinute() time.Time { return time.Now().Truncate(time.Minute).Add(time.Minute) }

// TestCachedPolicyRequestsDecodeTheSame: whatever changes meanwhile, a decoder with a cache resolves
// each request as one without does.
func TestCachedPolicyRequestsDecodeTheSame(t *testing.T) {
	t.Parallel()
	files := []*policy.Keeper{
		keeperOf(t, cachedPolicies), keeperOf(t, strings.ReplaceAll(cachedPolicies, "limit: 7,", "limit: 8,")),
		keeperOf(t, strings.ReplaceAll(cachedPolicies, "night", "other")),
	}
	bodies := []string{
		`{"attributes":{"user":"7","route":"chat"}}`, `{"attributes":{"user":"7","route":"chat"},"tier":"PRO","cost":2}`,
		`{"attributes":{"user":"8","route":"x"}}`,
		`{"policy":"named","attributes":{"user":"7"}}`, `{"policy":"named"}`, `{"policy":"unknown","attributes":{"user":"7"}}`,
		`{"policy":"named","attributes":{"user":"7"},"id":"x"}`, `{"attributes":{"route":"x"}}`, hot,
	}
	subjects := []overrides.ID{
		{Policy: "night", Name: "l", Subject: "night:7"}, {Policy: "night", Name: "day", Subject: "night:*"},
		{Policy: "named", Name: "l", Subject: "named:7"}, {Policy: "tried", Name: "l", Subject: "tried:7"},
	}
	synctest.Test(t, func(t *testing.T) {
		table, err := overrides.New(overrides.Config{Store: eachstore.SQLite(t, nil)})
		if err != nil {
			t.Fatal(err)
		}
		var policies swappablePolicies
		policies.Store(files[0])
		d := testDecoder(t)
		d.policies, d.overrides = &policies, table
		random := rand.New(rand.NewPCG(1, 2))
		hits := 0
		for range 3000 {
			switch random.IntN(12) {
			case 0:
				policies.Store(files[random.IntN(len(files))])
			case 1, 2:
				changeOverride(t, table, subjects[random.IntN(len(subjects))], random)
			case 3:
				time.Sleep(time.Duration(1+random.IntN(10_000)) * time.Millisecond)
			case 4:
				if random.IntN(4) == 0 {
					time.Sleep(time.Until(nextMinute()))
				}
			}
			body := bodies[random.IntN(len(bodies))]
			for range 1 + random.IntN(3) {
				hits += decodeTwice(t, d, body)
			}
		}
		if hits < 1000 {
			t.Errorf("only %d were cached", hits)
		}
	})
}

// changeOverride sets an override, which may expire soon, or deletes it.
func changeOverride(t *testing.T, table *overrides.Table, id overrides.ID, random *rand.Rand) {
	t.Helper()
	o := overrides.Override{ID: id, Limit: 1 + random.Int64N(50)}
	var err error
	switch random.IntN(6) {
	case 0:
		o.ExpiresAt = time.Now().UnixMilli() + 1 + random.Int64N(20_000)
		err = table.Put(t.Context(), o)
	case 1:
		o.ExpiresAt = nextMinute().UnixMilli()
		err = table.Put(t.Context(), o)
	case 2:
		err = table.Put(t.Context(), o)
	default:
		_, err = table.Delete(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// decodeTwice decodes a body with the cache and without, and returns how often it was cached.
func decodeTwice(t *testing.T, d *decoder, body string) (hits int) {
	t.Helper()
	var got, want engine.Request
	_, _, wantErr := d.parse(engine.Consume, []byte(body), &want)
	if isCached(d, []byte(body)) {
		hits++
	}
	err := d.decode(engine.Consume, []byte(body), nil, &got)
	for i := range got.Limits {
		got.Limits[i].Ref = nil // says nothing of what is asked
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("%s\n got  %+v, %v\n want %+v, %v", body, got, err, want, wantErr)
	}
	return hits
}

// TestAnOutdatedRequestIsReplaced at once, in its place.
func TestAnOutdatedRequestIsReplaced(t *testing.T) {
	t.Parallel()
	var policies swappablePolicies
	policies.Store(keeperOf(t, cachedPolicies))
	d := testDecoder(t)
	d.policies = &policies
	body := []byte(`{"policy":"named","attributes":{"user":"7"}}`)
	decode := func() {
		if err := d.decode(engine.Consume, body, nil, new(engine.Request)); err != nil {
			t.Fatal(err)
		}
	}
	decode()
	decode()
	policies.Store(keeperOf(t, cachedPolicies))
	if isCached(d, body) {
		t.Error("it is answered by policies that are not in force")
	}
	now := time.Now().UnixMilli()
	for _, by := range []resolvedBy{{since: now + 60_000, until: now + 90_000}, {since: now - 90_000, until: now - 60_000}} {
		if by.policies = policies.Current().Version(); d.holds(&by) {
			t.Errorf("from %d to %d holds at %d", by.since, by.until, now) // the clock may have been set
		}
	}
	decode()
	if !isCached(d, body) || d.cache.locate(body).set.entries[1].Load() != nil {
		t.Error("it is not replaced")
	}
}

// TestAChangeElsewhereKeepsARequestsPlaces: an override of another subject changes nothing of the limits, so their denials,
// leases and usage stay where they are. With new places each key would be counted in one more place after each change.
func TestAChangeElsewhereKeepsARequestsPlaces(t *testing.T) {
	t.Parallel()
	table, err := overrides.New(overrides.Config{Store: eachstore.SQLite(t, nil)})
	if err != nil {
		t.Fatal(err)
	}
	var policies swappablePolicies
	policies.Store(keeperOf(t, cachedPolicies))
	d := testDecoder(t)
	d.policies, d.overrides = &policies, table
	body := []byte(`{"policy":"named","attributes":{"user":"7"}}`)
	decoded := func() engine.Limit {
		t.Helper()
		for range 2 {
			if err := d.decode(engine.Consume, body, nil, new(engine.Request)); err != nil {
				t.Fatal(err)
			}
		}
		var r engine.Request
		if !isCached(d, body) {
			t.Error("it is not cached")
		}
		if err := d.decode(engine.Consume, body, nil, &r); err != nil {
			t.Fatal(err)
		}
		return r.Limits[0]
	}
	override := func(subject string, limit, expiresAt int64) {
		t.Helper()
		o := overrides.Override{ID: overrides.ID{Policy: "named", Name: "l", Subject: subject}, Limit: limit, ExpiresAt: expiresAt}
		if err := table.Put(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	before := decoded()
	override("named:8", 70, 0)
	if after := decoded(); after != before {
		t.Errorf("before %+v, after %+v", before, after)
	}
	override("named:7", 70, 0)
	changed := decoded()
	if changed.Limit != 70 || changed.Ref == before.Ref {
		t.Errorf("a changed limit is %+v, before %+v", changed, before)
	}
	const far = 1 << 52
	override("named:7", 70, far)
	if after := decoded(); after != changed {
		t.Errorf("before %+v, after %+v", changed, after)
	}
	if by := d.cache.locate(body).set.entries[0].Load().by.Load(); by.until != far {
		t.Errorf("it is kept until %d", by.until)
	}
}
