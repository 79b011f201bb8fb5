package bus

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeatedLogLinesAreCounted: each text is logged at once, and then at intervals with a count.
func TestRepeatedLogLinesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines logThrottles
		expect := func(text string, want int64) {
			t.Helper()
			if got := lines.due(text); got != want {
				t.Errorf("%s: %d, want %d", text, got, want)
			}
		}
		expect("a", 1)
		for range 5 {
			expect("a", 0)
		}
		expect("b", 1)
		time.Sleep(logInterval)
		expect("a", 6)
		expect("a", 0)
		for i := range 3 * maxThrottledTexts {
			expect(fmt.Sprint("other ", i), 1)
		}
		if len(lines.byText) > maxThrottledTexts {
			t.Errorf("%d texts are remembered", len(lines.byText))
		}
	})
}
