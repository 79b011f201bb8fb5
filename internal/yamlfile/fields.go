package yamlfile

import (
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/zone"
)

// OneOf reports a word that is not known. An empty word stands for one that is not given, and is accepted.
func (p *Problems) OneOf(word, path string, known ...string) bool {
	if word != "" && !slices.Contains(known, word) {
		p.Add(path, "unknown value %s%s; want one of %s", Quote(word), DidYouMean(word, known), strings.Join(known, ", "))
		return false
	}
	return true
}

// Zone loads an IANA time zone. An empty name is UTC.
func (p *Problems) Zone(name, path string) *time.Location {
	if name == "" {
		return time.UTC
	}
	l, ok := zone.Load(name)
	if !ok {
		p.Add(path, "unknown time zone %s; want an IANA name such as Europe/Berlin or UTC", Quote(name))
		return time.UTC
	}
	return l
}

// TimesOfDay parses the fields from and to of the value at path, "HH:MM", as minutes since midnight. Only to may be 24:00.
func (p *Problems) TimesOfDay(from, to, path string) (begin, end int, ok bool) {
	const day = 24 * 60
	begin, okFrom := p.timeOfDay(from, path+".from", day-1)
	end, okTo := p.timeOfDay(to, path+".to", day)
	if !okFrom || !okTo {
		return 0, 0, false
	}
	if begin == end {
		p.Add(path, "from and to are both %s; for the whole day, use from 00:00 to 24:00", from)
	}
	return begin, end, begin != end
}

// timeOfDay parses "HH:MM" as minutes since midnight, at most latest.
func (p *Problems) timeOfDay(s, path string, latest int) (int, bool) {
	if s == "" {
		p.Add(path, `is missing; want a time of day such as "22:00"`)
		return 0, false
	}
	var h, m int
	ok := len(s) == 5 && s[2] == ':'
	for _, i := range [...]int{0, 1, 3, 4} {
		ok = ok && s[i] >= '0' && s[i] <= '9'
	}
	if ok {
		h, m = int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	}
	if at := h*60 + m; ok && m < 60 && at <= latest {
		return at, true
	}
	p.Add(path, `%s is not a time of day; want "HH:MM", 00:00 to %02d:%02d`, Quote(s), latest/60, latest%60)
	return 0, false
}
