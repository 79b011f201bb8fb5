package bus

import (
	"fmt"
	"strings"
	"sync"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

// decoder turns the bodies of consume, check, record, refund and settle into requests.
type decoder struct {
	threshold policy.Threshold
	zones     zones
	windows   windows
	parsers   sync.Pool
	cache     *requestCache
	// policies and overrides answer form 3; nil for none.
	policies  Policies
	overrides *overrides.Table
	// onNoPolicies is called for a request that asks for all policies that match when there are
	// none.
	onNoPolicies func()
}

func newDecoder(warning float64) (*decoder, error) {
	t, err := policy.NewThreshold(warning)
	if err != nil {
		return nil, err
	}
	d := &decoder{threshold: t, cache: newRequestCache(), onNoPolicies: func() {}}
	d.parsers.New = func() any { return &parser{reader: newReader(), decoder: d} }
	return d, nil
}

// decode reads data into req, to whose Limits it appends. lookup is what the cache has for data, or
// nil if nobody has looked yet. The error is a *[limits.Error].
func (d *decoder) decode(verb engine.Verb, data []byte, lookup *cacheLookup, req *engine.Request) error {
	if verb == engine.Settle {
		return decodeSettle(data, req)
	}
	if lookup == nil {
		unseen := d.cache.locate(data)
		lookup = &unseen
	}
	if lookup.hit == nil {
		lookup.search(data) // even after lookupAll: an equal request of the batch may have been stored since
	}
	if lookup.hit != nil && d.reuse(lookup.hit, verb, req) {
		return nil
	}
	by, pure, err := d.parse(verb, data, req)
	if pure {
		lookup.store(data, req, by, nil)
	}
	return err
}

// reuse fills req with what was cached, if that holds.
func (d *decoder) reuse(k *cachedRequest, verb engine.Verb, req *engine.Request) bool {
	by := k.by.Load()
	if !d.holds(by) {
		return false
	}
	req.Verb, req.Limits, req.Cost = verb, append(req.Limits, k.limits...), k.cost
	if by.policies != 0 {
		req.OnError = k.onError
	}
	return true
}

// parse decodes data without the cache. pure says that req depends on data and by alone: as long as
// by holds it would be the same and, apart from the verb, for any verb.
func (d *decoder) parse(verb engine.Verb, data []byte, req *engine.Request) (by resolvedBy, pure bool, err error) {
	p := d.acquireParser()
	defer d.parsers.Put(p)
	if !p.parseQuick(data) {
		p.reset()
		if err := p.document(data, p.topMember); err != nil {
			return by, false, err
		}
	}
	err = p.buildRequest(verb, req)
	return p.by, err == nil && p.pure(), err
}

// pure reports whether what was resolved depends on the request and on p.by alone.
func (p *parser) pure() bool { return p.id == "" && (p.hasInlineLimits() || p.by.policies != 0) }

// policyRequest builds a request of form 3 whose parts were checked before. It may have more
// attributes than a request on the wire: those of an API key besides its own. by and pure are as for parse.
func (d *decoder) policyRequest(verb engine.Verb, r *limits.Request, req *engine.Request) (by resolvedBy, pure bool, err error) {
	p := d.acquireParser()
	defer d.parsers.Put(p)
	p.given = givenAttributes
	p.policy, p.tier, p.attributes, p.cost, p.id = r.Policy, r.Tier, r.Attributes, max(1, r.Cost), r.ID
	err = p.buildRequest(verb, req)
	return p.by, err == nil && p.pure(), err
}

// buildRequest fills req with what was parsed.
func (p *parser) buildRequest(verb engine.Verb, req *engine.Request) error {
	if err := p.resolve(req); err != nil {
		return err
	}
	req.Verb, req.Cost = verb, p.cost
	if p.id == "" || verb == engine.Check {
		return req.Refusal // with an id, the engine first looks for an earlier answer
	}
	req.ID, req.Fingerprint = p.id, fingerprint(verb, req, &p.parsedRequest)
	return nil
}

// hasInlineLimits reports whether the request gives its limits itself and uses no policy.
func (q *parsedRequest) hasInlineLimits() bool { return q.given&^givenLimits == 0 }

// parsedRequest is a request as written: top is the limit of form 1, and items are those of form 2.
// Each field is valid by itself; whether they go together is not checked yet.
type parsedRequest struct {
	top   spec
	items []spec
	// given has a bit for each of the fields limits, policy, attributes and tier that was given.
	given  uint8
	policy string
	tier   string
	// attributes is nil unless given.
	attributes map[string]string
	cost       int64
	id         string
	// by is what resolved it; the zero value if no policies did.
	by resolvedBy
}

// The bits of given.
const (
	givenLimits = 1 << iota
	givenPolicy
	givenAttributes
	givenTier
)

// parser reads a request into its parsedRequest. Parsers are pooled.
type parser struct {
	*reader
	*decoder
	parsedRequest
}

// acquireParser returns a pooled parser, which has parsed nothing yet.
func (d *decoder) acquireParser() *parser {
	p := d.parsers.Get().(*parser)
	p.reset()
	return p
}

func (p *parser) reset() {
	clear(p.items)
	p.parsedRequest = parsedRequest{items: p.items[:0], cost: 1}
}

// The fields of a limit and of a request, for the error of an unknown one.
var (
	specFields = strings.Join(specNames[:], ", ")
	topFields  = specFields + ", limits, policy, attributes, tier, cost, id"
)

// topMember reads a top-level member of the request.
func (p *parser) topMember(name []byte) (err error) {
	switch string(name) {
	case "cost":
		p.cost, err = p.number("cost", 1, limits.MaxAmount)
	case "id":
		p.id, err = p.text("id", limits.MaxIDBytes)
	case "limits":
		p.given |= givenLimits
		err = p.readLimits()
	case "policy":
		p.given |= givenPolicy
		p.policy, err = p.text("policy", limits.MaxNameBytes)
	case "tier":
		p.given |= givenTier
		p.tier, err = p.text("tier", limits.MaxNameBytes)
	case "attributes":
		p.given |= givenAttributes
		err = p.readAttributes()
	default:
		return p.specMember(&p.top, name, topFields)
	}
	return err
}

// text reads a printable string and copies it.
func (p *parser) text(field string, max int) (string, error) {
	s, err := p.printable(field, 1, max)
	return string(s), err
}

// readLimits reads the array of form 2.
func (p *parser) readLimits() error {
	if k := p.dec.PeekKind(); k != '[' {
		v, err := p.value()
		if err != nil {
			return err
		}
		return p.bad("limits", "limits must be an array of limits; got %s", quote(v))
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return p.syntax(err)
	}
	defer func() { p.item = -1 }()
	for p.dec.PeekKind() != ']' {
		if len(p.items) == limits.MaxLimits {
			return &limits.Error{Status: 413, Code: limits.CodeTooManyLimits, Field: "limits", Message: fmt.Sprintf(
				"the request has more than %d limits; split it", limits.MaxLimits)}
		}
		if err := p.readLimit(); err != nil {
			return err
		}
	}
	_, err := p.dec.ReadToken()
	return p.syntax(err)
}

// readLimit reads one item of that array.
func (p *parser) readLimit() error {
	if p.dec.PeekKind() != '{' {
		v, err := p.value()
		if err != nil {
			return err
		}
		field := fmt.Sprintf("limits[%d]", len(p.items))
		return badInput("limits", field, "%s must be an object; got %s", field, quote(v))
	}
	p.item = len(p.items)
	p.items = append(p.items, spec{})
	s := &p.items[p.item]
	return p.object(func(name []byte) error { return p.specMember(s, name, specFields) })
}

// readAttributes reads the attributes of form 3.
func (p *parser) readAttributes() error {
	if p.dec.PeekKind() != '{' {
		v, err := p.value()
		if err != nil {
			return err
		}
		return p.bad("attributes", "attributes must be an object of strings; got %s", kindName(v.Kind()))
	}
	p.attributes = map[string]string{}
	return p.object(func(name []byte) error {
		n := string(name)
		if err := policy.CheckAttributeName(n, len(p.attributes)); err != nil {
			return p.bad("attributes", "%s", err)
		}
		v, err := p.readAttributeValue(n)
		p.attributes[n] = v
		return err
	})
}

func (p *parser) readAttributeValue(name string) (string, error) {
	path := "attributes." + name
	v, err := p.value()
	if err != nil {
		return "", err
	}
	if v.Kind() != '"' {
		return "", badInput("attributes", path, "attribute %s must be a string; got %s", name, kindName(v.Kind())) // its value is not for errors
	}
	s := string(p.unquote(v))
	if err := policy.CheckAttributeValue(name, s); err != nil {
		return "", badInput("attributes", path, "%s", err)
	}
	return s, nil
}

// forms returns, for each of the three forms, the name of a field of it that was given, or an empty
// text.
func (q *parsedRequest) forms() (inline, several, policy string) {
	inline = q.top.firstGiven()
	if q.given&givenLimits != 0 {
		several = "limits"
	}
	switch {
	case q.given&givenPolicy != 0:
		policy = "policy"
	case q.given&givenAttributes != 0:
		policy = "attributes"
	case q.given&givenTier != 0:
		policy = "tier"
	}
	return inline, several, policy
}

// resolve turns what was parsed into the limits of req.
func (p *parser) resolve(req *engine.Request) error {
	inline, several, policy := p.forms()
	switch {
	case inline != "" && several == "" && policy == "":
		return p.resolveSpec(req, &p.top, -1)
	case inline == "" && several != "" && policy == "":
		return p.resolveItems(req)
	case inline == "" && several == "" && policy != "":
		return p.resolvePolicy(req)
	case inline == "" && several == "" && policy == "":
		return &limits.Error{Status: 400, Code: "missing_form", Message: "the request names no limit; " +
			"give key, limit and window, or limits, or policy or attributes"}
	}
	a, b := inline, several
	if a == "" {
		a, b = several, policy
	} else if b == "" {
		b = policy
	}
	return mixedForms(b, "%s and %s cannot be combined; give key, limit and window, or limits, or policy and attributes", a, b)
}

func (p *parser) resolveItems(req *engine.Request) error {
	if len(p.items) == 0 {
		return invalid("limits", "limits is empty; want 1 to %d limits", limits.MaxLimits)
	}
	for i := range p.items {
		if err := p.resolveSpec(req, &p.items[i], i); err != nil {
			return err
		}
		id := req.Limits[i].CounterID
		for j := range i {
			if req.Limits[j].CounterID == id {
				return &limits.Error{Status: 400, Code: "duplicate_limit", Field: fmt.Sprintf("limits[%d]", i),
					Message: fmt.Sprintf("limits[%d] and limits[%d] both have key %q and name %q; give one of them a different name",
						j, i, short(id.Key), id.Name)}
			}
		}
	}
	return nil
}
