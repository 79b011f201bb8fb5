package engine

import (
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
func (b *batch) decideOnce(r *Request, newID func() string) {
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
		r.err = fmt.Errorf("settle %q: %w", r.consumeID(), ErrUnknownID)
		return
	default:
		stale = true
	}
	if r.Refusal != nil {
		r.err = r.Refusal
		return
	}
	if b.decideRequest(r, newID); r.err != nil {
		return
	}
	answer, err := b.encodeReceipt(r)
	if err != nil {
		r.err = fmt.Errorf("encode receipt of %q: %w", r.ID, err)
		return
	}
	fresh := Receipt{ID: r.ID, Fingerprint: r.Fingerprint, Answer: answer, ExpiresAt: b.now + receiptLife}
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
func (p *Receipt) replay(r *Request) (d Decision, err error) {
	if p.Fingerprint != r.Fingerprint {
		return d, fmt.Errorf("id %q: %w", r.ID, ErrIDConflict)
	}
	if err := json.Unmarshal(p.Answer, &d); err != nil {
		return d, fmt.Errorf("receipt of %q: %w: %w", r.ID, ErrCorrupt, err)
	}
	return d, nil
}
