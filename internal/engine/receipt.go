package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
)

// receiptLife is how long a receipt is kept, in milliseconds: the 10 minutes that are promised, and
// a margin.
const receiptLife = 15 * 60_000

// hasReceipt reports whether a repeat of the request is answered from a receipt. A check has none,
// since it charges nothing.
func (r *Request) hasReceipt() bool { return r.ID != "" && r.Verb != Check }

// decideOnce answers a request with an id: from its receipt if there is one, otherwise by a
// decision, for which it writes one.
func (b *batch) decideOnce(r *Request) {
	r.decision, r.err, r.replayed = Decision{}, nil, false // decide may have been called before
	slot, _ := slices.BinarySearch(b.receiptIDs, r.ID)
	receipt, stale := b.receipts[slot], false
	switch {
	case receipt == nil:
	case !receipt.forOtherConsume(r):
		r.decision, r.err = receipt.replay(r)
		r.replayed = !r.maybeCommitted
		return
	case b.consumeReplaced(r):
		r.err = fmt.Errorf("settle %q: %w", r.ConsumeID(), ErrUnknownID)
		return
	default:
		stale = true
	}
	if r.Refusal != nil {
		r.err = r.Refusal
		return
	}
	if b.decideRequest(r); r.err != nil {
		return
	}
	fresh := Receipt{ID: r.ID, Fingerprint: r.Fingerprint, Answer: b.encodeAnswer(r), ExpiresAt: b.now + receiptLife}
	if stale {
		if at := slices.IndexFunc(b.newReceipts, func(p Receipt) bool { return p.ID == r.ID }); at >= 0 { // from this batch
			b.newReceipts[at] = fresh
			b.receipts[slot] = &b.newReceipts[at]
			return
		}
		b.staleReceipts = append(b.staleReceipts, r.ID)
	}
	b.newReceipts = append(b.newReceipts, fresh)
	b.receipts[slot] = &b.newReceipts[len(b.newReceipts)-1]
}

// replay returns the answer in the receipt to a repeat of its request.
func (p *Receipt) replay(r *Request) (Decision, error) {
	if p.Fingerprint != r.Fingerprint {
		return Decision{}, fmt.Errorf("id %q: %w", r.ID, ErrIDConflict)
	}
	a, err := p.decode()
	if err != nil {
		return Decision{}, fmt.Errorf("receipt of %q: %w", r.ID, err)
	}
	return a.Decision, nil
}

// answer is what a receipt stores. ConsumeExpiry is set for a settle, see [Request].
type answer struct {
	Decision
	Reservation   *reservation `json:"reservation,omitempty"`
	ConsumeExpiry int64        `json:"life,omitempty"`
}

// answerVersion begins an encoded answer. It is followed by flags, the consume's expiry, the cost of the reservation if
// there is one, and the limits. Numbers are varints.
const answerVersion = 1

// The flags of an answer.
const (
	answerAllowed = 1 << iota
	answerShadow
	answerReserves
)

// The flags of one of its limits.
const (
	limitAllowed = 1 << iota
	limitShadow
	limitSpared
	limitFirstUse
	limitReserved
)

// encodeAnswer encodes what the receipt of a request stores, which was decided over the batch's states.
func (b *batch) encodeAnswer(r *Request) []byte {
	d, reserves := &r.decision, r.Verb == Consume && r.decision.Allowed
	to := make([]byte, 0, 128)
	to = append(to, answerVersion, flag(d.Allowed, answerAllowed)|flag(d.Shadow, answerShadow)|flag(reserves, answerReserves))
	to = binary.AppendVarint(to, r.consumeExpiry)
	if reserves {
		to = binary.AppendVarint(to, r.Cost)
	}
	to = binary.AppendVarint(to, int64(len(d.Results)))
	for i := range d.Results {
		l, result := &r.Limits[i], &d.Results[i]
		reserved := reserves && r.charges(d, i) // not a limit in shadow that was spared
		to = appendResult(to, l, result, flag(reserved, limitReserved))
		if reserved {
			s := b.states[i]
			to = binary.AppendVarint(to, l.Threshold)
			to = appendText(to, l.User)
			to = binary.AppendVarint(to, s.counting().moment())
			to = binary.AppendVarint(to, s.since)
		}
	}
	return to
}

// appendResult appends a limit and what was decided about it.
func appendResult(to []byte, l *Limit, r *Result, flags byte) []byte {
	flags |= flag(r.Allowed, limitAllowed) | flag(r.Shadow, limitShadow) | flag(r.Spared, limitSpared)
	flags |= flag(l.FirstUse, limitFirstUse)
	to = append(to, flags, byte(l.Algorithm))
	timezone := ""
	if l.Zone != nil {
		timezone = l.Zone.String()
	}
	for _, s := range [...]string{l.Key, l.Name, l.Policy, l.Window.text, timezone, r.Message} {
		to = appendText(to, s)
	}
	for _, n := range [...]int64{l.Limit, l.Burst, r.Used, r.Remaining, r.ResetAt, r.RetryAfter} {
		to = binary.AppendVarint(to, n)
	}
	return to
}

func flag(is bool, f byte) byte {
	if is {
		return f
	}
	return 0
}

func appendText(to []byte, s string) []byte {
	return append(binary.AppendVarint(to, int64(len(s))), s...)
}

// decode returns what the receipt stores. The error is [ErrCorrupt].
func (p *Receipt) decode() (a answer, err error) {
	if len(p.Answer) > 0 && p.Answer[0] == '{' { // of an older release, which wrote JSON; of the oldest without a reservation
		if err = json.Unmarshal(p.Answer, &a); err != nil {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return a, err
	}
	d := decoder{b: p.Answer}
	version, flags := d.byte(), d.byte()
	a.Allowed, a.Shadow = flags&answerAllowed != 0, flags&answerShadow != 0
	a.ConsumeExpiry = d.number()
	if flags&answerReserves != 0 {
		a.Reservation = &reservation{Cost: d.between(0, MaxAmount)}
	}
	a.Results = make([]Result, d.between(0, int64(len(d.b)))) // each has several bytes
	for i := range a.Results {
		d.result(&a.Results[i], a.Reservation)
	}
	if d.bad || len(d.b) != 0 || version != answerVersion {
		return answer{}, fmt.Errorf("%w: an answer of %d bytes, version %d", ErrCorrupt, len(p.Answer), version)
	}
	return a, nil
}

// result reads what appendResult wrote, and what follows it if the limit was reserved.
func (d *decoder) result(r *Result, reserved *reservation) {
	flags, algorithm := d.byte(), Algorithm(d.byte())
	id := CounterID{Key: d.text(), Name: d.text()}
	r.Key, r.Name, r.Algorithm, r.FirstUse = id.Key, id.Label(), algorithm, flags&limitFirstUse != 0
	r.Allowed, r.Shadow, r.Spared = flags&limitAllowed != 0, flags&limitShadow != 0, flags&limitSpared != 0
	r.Policy, r.Window = d.text(), d.text()
	timezone := d.text()
	r.Message = d.text()
	for _, n := range [...]*int64{&r.Limit, &r.Burst, &r.Used, &r.Remaining, &r.ResetAt, &r.RetryAfter} {
		*n = d.number()
	}
	if flags&limitReserved == 0 {
		return
	}
	if reserved == nil {
		d.bad = true
		return
	}
	reserved.Limits = append(reserved.Limits, reservedLimit{
		Key: id.Key, Name: id.Name, Shadow: r.Shadow,
		Threshold: d.number(), User: d.text(), At: d.number(), Since: d.number(),
		Spec: Spec{
			Policy: r.Policy, Algorithm: algorithm.String(), Limit: r.Limit, Window: r.Window, Burst: r.Burst,
			Timezone: timezone, FirstUse: r.FirstUse,
		},
	})
}
