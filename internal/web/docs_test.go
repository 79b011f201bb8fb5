package web

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// names returns the names of all registered metrics, including those without a value yet.
type names struct {
	prometheus.Registerer
	seen map[string]bool
}

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (n *names) MustRegister(all ...prometheus.Collector) {
	n.Registerer.MustRegister(all...)
	for _, c := range all {
		descs := make(chan *prometheus.Desc, 1000)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			n.seen[fqName.FindStringSubmatch(d.String())[1]] = true
		}
	}
}

// registered registers the metrics of a worker: it calls every method of Metrics that begins with Watch or Set.
func registered() *names {
	n := &names{prometheus.NewRegistry(), map[string]bool{}}
	m := reflect.ValueOf(NewMetrics(n))
	for i := range m.NumMethod() {
		name := m.Type().Method(i).Name
		if !strings.HasPrefix(name, "Watch") && !strings.HasPrefix(name, "Set") {
			continue
		}
		var args []reflect.Value
		for a := range m.Method(i).Type().NumIn() {
			args = append(args, reflect.Zero(m.Method(i).Type().In(a)))
		}
		m.Method(i).Call(args)
	}
	return n
}

// TestEveryMetricIsDocumented compares docs/operations.md with the metrics, in both directions.
func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:limits|alerts)_[a-z_]+)(?:\\{[a-z,]+\\})?` \\|[^|]+\\|[^|]+\\|$").FindAllStringSubmatch(section, -1) {
		documented[row[1]] = true
	}
	ours := registered().seen
	maps.DeleteFunc(ours, func(name string, _ bool) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
	})
	if len(ours) < 15 {
		t.Errorf("only %d metrics: %v", len(ours), ours)
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if !documented[name] {
			t.Errorf("docs/operations.md has no row that says what %s means and what to do when it moves", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !ours[name] {
			t.Errorf("docs/operations.md has %s, which is not there", name)
		}
	}
}
