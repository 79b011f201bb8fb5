package policy

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/seed503877ad/limits/internal/yamlfile/yamltest"
)

// slips are typical mistakes in policy files.
var slips = []string{"month", "*", "{user}", "{", "user|hash"}

// TestDamagedFilesAreReportedWithLine damages a good file in many ways. Each result is rejected
// with lines that exist, or is valid and resolves requests.
func TestDamagedFilesAreReportedWithLine(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chance, refused := rand.New(rand.NewPCG(4, 4)), 0
	for range 1500 {
		text := yamltest.Mutilated(chance, string(data), slips)
		set, err := Parse("f", []byte(text), options)
		if yamltest.Refused(t, err, text) {
			refused++
			continue
		}
		set.Explain(Question{Now: noon, Tier: "PRO", Attributes: map[string]string{"user": "u", "route": "chat", "ip": "::1"}})
	}
	if refused < 750 {
		t.Errorf("only %d of 1500 files were rejected: too little damage", refused)
	}
}
