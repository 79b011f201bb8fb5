package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// kept is a request with an id over fresh counters, and what its receipt stores.
type kept struct {
	request Request
	batch   batch
	receipt Receipt
}

// genKept decides a request with up to four limits, some of policies, in shadow, with messages and users.
func genKept(t *rapid.T) *kept {
	text, flag := rapid.StringN(0, 12, 40), rapid.Bool()
	k := &kept{request: Request{
		Verb: rapid.SampledFrom([]Verb{Consume, Record, Refund}).Draw(t, "verb"),
		Cost: rapid.Int64Range(1, 30).Draw(t, "cost"), ID: "job",
	}}
	for i := range rapid.IntRange(0, 4).Draw(t, "limits") {
		l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
		l.Key, l.Name = text.Draw(t, "key"), string(rune('a'+i))
		if flag.Draw(t, "of a policy") {
			l.Policy = text.Draw(t, "policy")
			l.Name, l.Message = PolicyName(l.Policy, l.Name), text.Draw(t, "message")
		}
		l.Shadow, l.User = flag.Draw(t, "shadow"), text.Draw(t, "user")
		l.Threshold = rapid.Int64Range(-1, MaxAmount).Draw(t, "threshold")
		s := &State{}
		s.advance(&l, noon)
		s.since = rapid.Int64Range(0, noon).Draw(t, "since")
		k.request.Limits, k.batch.states = append(k.request.Limits, l), append(k.batch.states, s)
	}
	k.request.decision = k.request.decide(k.batch.states, noon)
	k.receipt = Receipt{ID: "job", Answer: k.batch.encodeAnswer(&k.request)}
	return k
}

// TestAReceiptKeepsTheAnswerAndWhatASettleNeeds: the whole decision, and each limit that was charged as it was.
func TestAReceiptKeepsTheAnswerAndWhatASettleNeeds(t *testing.T) {
	t.Parallel()
	check(t, 1000, func(t *rapid.T) {
		k := genKept(t)
		r := &k.request
		if d, err := k.receipt.replay(&Request{ID: "job"}); err != nil || !reflect.DeepEqual(d, r.decision) {
			t.Fatalf("%+v, %v; the first was answered %+v", d, err, r.decision)
		}
		reserved, limits, err := k.receipt.reserved()
		if r.Verb != Consume || !r.decision.Allowed {
			if !errors.Is(err, ErrNothingToSettle) {
				t.Fatalf("a %s that charged nothing can be settled: %v", r.Verb, err)
			}
			return
		}
		if err != nil || reserved.Cost != r.Cost {
			t.Fatalf("%+v, %v; cost %d was charged", reserved, err, r.Cost)
		}
		charges := reserved.Limits
		for i, l := range r.Limits {
			if !r.charges(&r.decision, i) {
				continue
			}
			if len(limits) == 0 {
				t.Fatalf("limit %d is not settled", i)
			}
			l.Message = "" // a settle denies nobody
			if !reflect.DeepEqual(limits[0], l) {
				t.Errorf("limit %d is settled as\n%+v, and was\n%+v", i, limits[0], l)
			}
			if s := k.batch.states[i]; charges[0].At != s.counting().moment() || charges[0].Since != s.since {
				t.Errorf("charge of limit %d: %+v", i, charges[0])
			}
			limits, charges = limits[1:], charges[1:]
		}
		if len(limits) > 0 {
			t.Errorf("also settled: %+v", limits)
		}
	})
}

// TestAReceiptOfAnotherLengthIsRefused, rather than read as another answer.
func TestAReceiptOfAnotherLengthIsRefused(t *testing.T) {
	t.Parallel()
	check(t, 200, func(t *rapid.T) {
		whole := genKept(t).receipt.Answer
		for n := range whole {
			if _, err := (&Receipt{Answer: whole[:n]}).decode(); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
			}
		}
		if _, err := (&Receipt{Answer: append(whole, 0)}).decode(); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("with a byte after it: %v", err)
		}
	})
}

func FuzzDecodeReceipt(f *testing.F) {
	for seed := range 20 {
		f.Add(rapid.Custom(genKept).Example(seed).receipt.Answer)
	}
	f.Add([]byte(`{"allowed":true,"results":[{"key":"k"}],"reservation":{"cost":1,"limits":[{"key":"k","name":"n"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Receipt{Answer: b}
		d, err := p.replay(&Request{ID: "job"})
		if err == nil {
			d.Speaker()
		} else if !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
		switch reserved, limits, err := p.reserved(); {
		case err == nil && len(limits) != len(reserved.Limits):
			t.Errorf("%d limits of %d", len(limits), len(reserved.Limits))
		case err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNothingToSettle):
			t.Error(err)
		}
	})
}

// TestAReceiptOfAnotherVersionIsRefused, since its numbers may mean something else.
func TestAReceiptOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	check(t, 100, func(t *rapid.T) {
		whole := genKept(t).receipt.Answer
		whole[0]++
		if _, err := (&Receipt{Answer: whole}).decode(); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("version %d: %v", whole[0], err)
		}
	})
}

// TestATextIsNotLongerThanWhatIsThere, though its length was within what was there before it.
func TestATextIsNotLongerThanWhatIsThere(t *testing.T) {
	t.Parallel()
	d := decoder{b: binary.AppendVarint(nil, 1)}
	if got := d.text(); got != "" || !d.bad {
		t.Errorf("a text of one byte, cut short, is read as %q", got)
	}
}

// TestAChargeNeedsACost: an answer that has something to settle on a limit, and not how much was charged, is refused.
func TestAChargeNeedsACost(t *testing.T) {
	t.Parallel()
	l := limitOf(t, SlidingWindow, 10, "1m")
	r := Request{Verb: Record, Limits: []Limit{l}, Cost: 1, ID: "job"}
	var b batch
	b.states = append(b.states, &State{})
	r.decision = r.decide(b.states, noon)
	p := Receipt{Answer: b.encodeAnswer(&r)}
	if _, err := p.decode(); err != nil {
		t.Fatal(err)
	}
	p.Answer[4] |= limitReserved // after the version, the flags, the expiry, and the number of limits
	if _, err := p.decode(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("decoded: %v", err)
	}
}

// TestTheStoredFormOfAReceiptStaysTheSame, or a repeat that another release answers gets another answer.
func TestTheStoredFormOfAReceiptStaysTheSame(t *testing.T) {
	t.Parallel()
	l := limitOf(t, FixedWindow, 10, "day")
	l.Policy, l.User, l.FirstUse, l.Zone, l.Message = "p", "u", true, loadZone(t, "Europe/Berlin"), "no"
	shadow := limitOf(t, TokenBucket, 1, "1s")
	shadow.Key, shadow.Burst, shadow.Shadow = "l", 1, true
	var b batch
	for _, c := range []struct {
		cost int64
		want string
	}{
		{2, "01050004041901026b066461790270066461791a4575726f70652f4265726c696e001400041080f8dba09963" +
			"000102758088a9ce98638088a9ce98631302026c04317300043173000002020400a0a7a9ce98630001008088" +
			"a9ce98638088a9ce9863"},
		{3, "01070006041901026b066461790270066461791a4575726f70652f4265726c696e001400060e80f8dba09963" +
			"000102758088a9ce98638088a9ce98630602026c043173000431730000020200048088a9ce986300"},
		{11, "010000040801026b066461790270066461791a4575726f70652f4265726c696e046e6f140000148088a9ce98" +
			"63000602026c043173000431730000020200048088a9ce986300"},
	} {
		r := Request{Verb: Consume, Limits: []Limit{l, shadow}, Cost: c.cost, ID: "job"}
		b.states = []*State{{}, {}}
		r.decision = r.decide(b.states, noon)
		if got := fmt.Sprintf("%x", b.encodeAnswer(&r)); got != c.want {
			t.Errorf("a consume of %d is stored as\n%s; want\n%s", c.cost, got, c.want)
		}
	}
}
