package engine

import (
	"cmp"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// limitOf makes a limit of a window as written.
func limitOf(t testing.TB, a Algorithm, amount int64, window string) Limit {
	t.Helper()
	w, err := ParseWindow(window)
	if err != nil {
		t.Fatal(err)
	}
	return Limit{CounterID: CounterID{Key: "k", Name: window}, Algorithm: a, Limit: amount, Window: w, Threshold: -1}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	berlin := loadZone(t, "Europe/Berlin")
	for _, c := range []struct {
		name      string
		algorithm Algorithm
		window    string
		change    func(*Limit)
		field     string
	}{
		{"least", SlidingWindow, "100ms", func(l *Limit) { l.Limit = 1 }, ""},
		{"most", TokenBucket, "366d", func(l *Limit) { l.Limit, l.Burst = MaxAmount, MaxAmount }, ""},
		{"calendar", FixedWindow, "day", func(l *Limit) { l.Zone = berlin }, ""},
		{"first use", FixedWindow, "1m", func(l *Limit) { l.FirstUse = true }, ""},
		{"no limit", SlidingWindow, "1m", func(l *Limit) { l.Limit = 0 }, "limit"},
		{"limit too high", SlidingWindow, "1m", func(l *Limit) { l.Limit = MaxAmount + 1 }, "limit"},
		{"negative burst", TokenBucket, "1m", func(l *Limit) { l.Burst = -1 }, "burst"},
		{"burst too high", TokenBucket, "1m", func(l *Limit) { l.Burst = MaxAmount + 1 }, "burst"},
		{"burst of a window", FixedWindow, "1m", func(l *Limit) { l.Burst = 1 }, "burst"},
		{"no window", SlidingWindow, "1m", func(l *Limit) { l.Window = Window{} }, "window"},
		{"sliding calendar", SlidingWindow, "day", func(*Limit) {}, "algorithm"},
		{"sliding minute", SlidingWindow, "minute", func(*Limit) {}, "algorithm"},
		{"bucket calendar", TokenBucket, "month", func(*Limit) {}, "algorithm"},
		{"zone of a duration", FixedWindow, "1d", func(l *Limit) { l.Zone = berlin }, "timezone"},
		{"sliding first use", SlidingWindow, "1m", func(l *Limit) { l.FirstUse = true }, "anchor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := limitOf(t, c.algorithm, 10, c.window)
			c.change(&l)
			err := l.Validate()
			var bad *FieldError
			switch {
			case c.field == "" && err != nil:
				t.Errorf("Validate: %v", err)
			case c.field != "" && (!errors.As(err, &bad) || bad.Field != c.field):
				t.Errorf("Validate: %v; want an error about %s", err, c.field)
			}
		})
	}
}

func TestAlgorithmNames(t *testing.T) {
	t.Parallel()
	for _, a := range []Algorithm{SlidingWindow, FixedWindow, TokenBucket} {
		if got, err := ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("ParseAlgorithm(%q) = %v, %v", a, got, err)
		}
	}
	if got := Algorithm(3).String(); got != "algorithm(3)" {
		t.Errorf("an algorithm of a later release is called %q", got)
	}
	for _, bad := range []string{"", "Sliding_Window", "gcra", "algorithm(3)"} {
		if got, err := ParseAlgorithm(bad); err == nil {
			t.Errorf("ParseAlgorithm(%q) = %v; want an error", bad, got)
		}
	}
}

// A counter can be shown, and expires, by its stored spec alone.
func TestSpecDescribesTheWholeLimit(t *testing.T) {
	t.Parallel()
	check(t, 2000, func(t *rapid.T) {
		l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
		got, err := l.Spec().Resolve(l.CounterID)
		if err != nil {
			t.Fatal(err)
		}
		if got.hash() != l.hash() {
			t.Fatalf("%+v came back as %+v", l, got)
		}
	})
}

// Everything in the definition changes the hash, or a counter would be read under the wrong
// definition.
func TestHashDistinguishesDefinitions(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	add := func(name string, l Limit) {
		h := l.hash()
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
	base := limitOf(t, FixedWindow, 10, "day")
	add("base", base)
	for name, change := range map[string]func(*Limit){
		"policy":    func(l *Limit) { l.Policy = "p" },
		"limit":     func(l *Limit) { l.Limit++ },
		"burst":     func(l *Limit) { l.Burst++ },
		"first use": func(l *Limit) { l.FirstUse = true },
		"sliding":   func(l *Limit) { l.Algorithm = SlidingWindow },
		"bucket":    func(l *Limit) { l.Algorithm = TokenBucket },
		"window":    func(l *Limit) { l.Window.text = "week" },
		"zone":      func(l *Limit) { l.Zone = time.FixedZone("Europe/Berlin", 3600) },
		"UTC":       func(l *Limit) { l.Zone = time.UTC },
	} {
		l := base
		change(&l)
		add(name, l)
		if same := l; l.sameDefinition(&base) || base.sameDefinition(&l) || !l.sameDefinition(&same) {
			t.Errorf("%s is not told apart", name)
		}
	}
	same := base
	same.Threshold, same.User, same.Key = 5, "u", "other"
	if same.hash() != base.hash() || !same.sameDefinition(&base) {
		t.Error("key, threshold and user are no part of the definition")
	}
}

// TestTheHashOfADefinitionStaysTheSame from one release to the next: it is stored with every
// counter, and another one would carry over all of them.
func TestTheHashOfADefinitionStaysTheSame(t *testing.T) {
	t.Parallel()
	month := limitOf(t, FixedWindow, 10, "month")
	month.Policy, month.Zone, month.FirstUse = "api", loadZone(t, "Europe/Berlin"), true
	bucket := limitOf(t, TokenBucket, MaxAmount, "366d")
	bucket.Burst = MaxAmount
	for _, c := range []struct {
		limit Limit
		want  uint64
	}{
		{limitOf(t, SlidingWindow, 1, "1s"), 0x8c855e54a160affe}, {month, 0xe31dbce7083e76c0}, {bucket, 0x1e67e5f237a045e0},
	} {
		if got := c.limit.hash(); got != c.want {
			t.Errorf("%+v has hash %#x; want %#x", c.limit.Spec(), got, c.want)
		}
	}
}

// Counters are in order of key, then of name.
func TestCounterIDsAreInOrder(t *testing.T) {
	t.Parallel()
	ids := []CounterID{{}, {"", "b"}, {"a", "a"}, {"a", "b"}, {"a", "bb"}, {"aa", "a"}, {"b", ""}}
	for i, a := range ids {
		for j, b := range ids {
			if got := a.Compare(b); got != cmp.Compare(i, j) {
				t.Errorf("%q compared with %q: %d", a, b, got)
			}
		}
	}
}

// The name of a policy's counter says both; the name of an inline limit has no policy.
func TestCounterNamesTellTheirPolicy(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		PolicyName("api", "1m"): {"api", "1m"}, PolicyName("p", ""): {"p", ""}, "1m": {"", "1m"}, "": {"", ""},
	} {
		id := CounterID{Key: "k", Name: name}
		if got := [2]string{id.PolicyPart(), id.Label()}; got != want {
			t.Errorf("%q is limit %q of policy %q", name, got[1], got[0])
		}
	}
}
