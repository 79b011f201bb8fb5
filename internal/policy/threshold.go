package policy

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Threshold is the part of a limit at or below which a warning is raised, as a fraction of whole numbers, because
// 0.29 × 100 in floating point is less than 29. The zero Threshold raises none.
type Threshold struct{ num, den uint64 }

// NewThreshold reads a part, 0 to 1; below 0 raises none.
func NewThreshold(part float64) (Threshold, error) {
	if part < 0 {
		return Threshold{}, nil
	}
	// At most 18 decimals, so that both numbers fit.
	text := strconv.FormatFloat(part, 'f', -1, 64)
	if len(text) > 20 {
		text = strconv.FormatFloat(part, 'f', 18, 64)
	}
	whole, decimals, _ := strings.Cut(text, ".")
	num, err := strconv.ParseUint(whole+decimals, 10, 64)
	if err != nil || !(part <= 1) {
		return Threshold{}, fmt.Errorf("warning threshold %v is out of range; want 0 to 1, or below 0 for no warnings", part)
	}
	t := Threshold{num: num, den: 1}
	for range decimals {
		t.den *= 10
	}
	return t, nil
}

// Of gives the threshold of a limit, rounded down; -1 for none.
func (t Threshold) Of(limit int64) int64 {
	if t.den == 0 {
		return -1
	}
	hi, lo := bits.Mul64(uint64(limit), t.num)
	q, _ := bits.Div64(hi, lo, t.den)
	return int64(q)
}
