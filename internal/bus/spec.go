package bus

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/zone"
)

// spec is one limit as written. A field that was not given is zero. given has a bit for each field
// that was, by the numbers below.
type spec struct {
	key, name string
	limit     int64
	burst     int64
	window    engine.Window
	algorithm engine.Algorithm
	// zone is nil for UTC.
	zone     *time.Location
	firstUse bool
	leased   bool
	given    uint16
}

const (
	specKey = iota
	specLimit
	specWindow
	specAlgorithm
	specBurst
	specName
	specTimezone
	specAnchor
	specConsistency
)

var specNames = [...]string{"key", "limit", "window", "algorithm", "burst", "name", "timezone", "anchor", "consistency"}

func (s *spec) has(field int) bool { return s.given&(1<<field) != 0 }

// firstGiven is the name of the first field that was given, or empty.
func (s *spec) firstGiven() string {
	if s.given == 0 {
		return ""
	}
	return specNames[bits.TrailingZeros16(s.given)]
}

// specMember reads a member of a limit.
func (p *parser) specMember(s *spec, name []byte, known string) (err error) {
	field := specField(name)
	if field < 0 {
		return p.unknown(name, known)
	}
	s.given |= 1 << field
	switch field {
	case specKey:
		s.key, err = p.text("key", limits.MaxKeyBytes)
	case specName:
		s.name, err = p.text("name", limits.MaxNameBytes)
	case specLimit:
		s.limit, err = p.number("limit", 1, limits.MaxAmount)
	case specBurst:
		s.burst, err = p.number("burst", 0, limits.MaxAmount)
	default:
		err = p.specWord(s, field)
	}
	return err
}

func specField(name []byte) int {
	for i, n := range specNames {
		if string(name) == n {
			return i
		}
	}
	return -1
}

// specWord reads a field whose text is one of a few words, a window or a time zone.
func (p *parser) specWord(s *spec, field int) error {
	name := specNames[field]
	text, err := p.string(name)
	if err != nil {
		return err
	}
	if err := p.setText(s, field, text); err != nil {
		return p.bad(name, "%s", err)
	}
	return nil
}

// setText parses the text of such a field into s.
func (d *decoder) setText(s *spec, field int, text []byte) (err error) {
	switch field {
	case specWindow:
		s.window, err = d.windows.parse(text)
	case specAlgorithm:
		s.algorithm, err = parseAlgorithm(text)
	case specTimezone:
		s.zone, err = d.zones.load(text)
	case specAnchor:
		if s.firstUse = string(text) == "first_use"; !s.firstUse && string(text) != "aligned" {
			err = fmt.Errorf("unknown anchor %s; want aligned, first_use", quoteText(text))
		}
	case specConsistency:
		if s.leased = string(text) == limits.Leased; !s.leased && string(text) != limits.Exact {
			err = fmt.Errorf("unknown consistency %s; want %s, %s", quoteText(text), limits.Exact, limits.Leased)
		}
	}
	return err
}

// parseAlgorithm parses an algorithm, without an allocation if there is one of that name.
func parseAlgorithm(text []byte) (engine.Algorithm, error) {
	for _, a := range [...]engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		if string(text) == a.String() {
			return a, nil
		}
	}
	return engine.ParseAlgorithm(short(string(text)))
}

// resolveSpec appends the limit of s to req. item is its index in limits, or -1 for form 1.
func (p *parser) resolveSpec(req *engine.Request, s *spec, item int) error {
	for _, field := range [...]int{specKey, specLimit, specWindow} {
		if !s.has(field) {
			name := specNames[field]
			return badInput(name, itemPath(item, name), "%s is missing; a limit needs key, limit and window", name)
		}
	}
	if s.has(specTimezone) && s.window.Period == 0 {
		return badInput("timezone", itemPath(item, "timezone"),
			"timezone needs a calendar period (minute, hour, day, week, month); this limit has window %s", s.window)
	}
	l := engine.Limit{
		CounterID: engine.CounterID{Key: s.key, Name: s.name},
		Algorithm: s.algorithm, Limit: s.limit, Burst: s.burst, Window: s.window, Zone: s.zone, FirstUse: s.firstUse,
		Leased: s.leased, Threshold: p.threshold.Of(s.limit), User: policy.Identifier(s.key),
	}
	if !s.has(specName) {
		l.Name = s.window.String()
	}
	if !s.has(specAlgorithm) && s.window.Period != 0 {
		l.Algorithm = engine.FixedWindow
	}
	if err := l.Validate(); err != nil {
		var fe *engine.FieldError // declared here because it escapes to the heap
		if errors.As(err, &fe) {
			return badInput(fe.Field, itemPath(item, fe.Field), "%s", fe.Message)
		}
		return err
	}
	req.Limits = append(req.Limits, l)
	return nil
}

// fingerprint identifies what a request asks for, so that the same id with another request is
// noticed. It covers the resolved request: white space, the order of members, and a default that is
// written out make no difference. For form 3 it covers the request as written, because the limits
// of a policy may have changed when the request is repeated.
func fingerprint(verb engine.Verb, req *engine.Request, q *parsedRequest) [32]byte {
	b := make([]byte, 0, 256)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	b = append(b, 1, byte(verb))
	b = binary.AppendVarint(b, req.Cost)
	if !q.hasInlineLimits() {
		str(q.policy)
		str(q.tier)
		for _, name := range slices.Sorted(maps.Keys(q.attributes)) {
			str(name)
			str(q.attributes[name])
		}
		return sha256.Sum256(b)
	}
	for i := range req.Limits {
		l := &req.Limits[i]
		str(l.Key)
		str(l.Name)
		str(l.Policy)
		str(l.Window.String())
		zone := ""
		if l.Zone != nil {
			zone = l.Zone.String()
		}
		str(zone)
		b = append(b, byte(l.Algorithm), flag(l.FirstUse))
		b = binary.AppendVarint(b, l.Limit)
		b = binary.AppendVarint(b, l.Burst)
		if l.Leased { // exact adds nothing: ids from before consistency existed still match
			str(limits.Leased)
		}
	}
	return sha256.Sum256(b)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// windows caches parsed windows, because nearly all requests use one of a few. It is bounded. Once
// it is full, further windows are parsed each time.
type windows struct {
	mu    sync.Mutex
	known atomic.Pointer[map[string]engine.Window]
}

const maxKnownWindows = 256

func (w *windows) parse(text []byte) (engine.Window, error) {
	known := w.known.Load()
	if known != nil {
		if v, ok := (*known)[string(text)]; ok {
			return v, nil
		}
	}
	v, err := engine.ParseWindow(short(string(text)))
	if err == nil && (known == nil || len(*known) < maxKnownWindows) {
		w.add(v)
	}
	return v, err
}

func (w *windows) add(v engine.Window) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := map[string]engine.Window{v.String(): v}
	if known := w.known.Load(); known != nil {
		for k, v := range *known {
			next[k] = v
		}
	}
	w.known.Store(&next)
}

// zones caches time zones, as loading one reads a file. There are some 600 names. An unknown name
// costs several file look-ups, so the last unknown names are cached too.
type zones struct {
	mu      sync.RWMutex
	known   map[string]*time.Location
	unknown map[string]struct{}
}

const (
	maxKnownZones = 1024
	maxZoneBytes  = 64
)

func unknownZone(name []byte) error {
	return fmt.Errorf("unknown time zone %s; want an IANA name such as Europe/Berlin or UTC", quoteText(name))
}

// load returns the zone of an IANA name, or nil for UTC.
func (z *zones) load(text []byte) (*time.Location, error) {
	z.mu.RLock()
	known, ok := z.known[string(text)]
	_, wrong := z.unknown[string(text)]
	z.mu.RUnlock()
	switch {
	case ok:
		return known, nil
	case wrong:
		return nil, unknownZone(text)
	}
	name := string(text)
	loaded, ok := zone.Load(name)
	if loaded == time.UTC {
		loaded = nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.known == nil {
		z.known, z.unknown = map[string]*time.Location{}, map[string]struct{}{}
	}
	if !ok {
		if len(z.unknown) >= maxKnownZones {
			clear(z.unknown)
		}
		if len(name) <= maxZoneBytes {
			z.unknown[name] = struct{}{}
		}
		return nil, unknownZone(text)
	}
	if len(z.known) < maxKnownZones {
		z.known[name] = loaded
	}
	return loaded, nil
}
