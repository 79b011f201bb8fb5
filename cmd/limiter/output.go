package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/seed503877ad/limits/internal/settings"
)

// stdout is standard output. It keeps its first error for the exit status: a verb whose output is lost has failed.
type stdout struct {
	to io.Writer
	// end cancels the verb after an error. Otherwise a watch or a long list would go on without a reader.
	end func()
	err error
}

// Write writes text for people. It replaces control characters, because much of the text comes from others.
func (o *stdout) Write(text []byte) (int, error) {
	o.write(bytes.Map(settings.Shown, text))
	return len(text), o.err
}

// line writes a line of JSON unchanged.
func (o *stdout) line(json []byte) { o.write(slices.Concat(json, []byte("\n"))) }

func (o *stdout) write(text []byte) {
	if o.err != nil {
		return
	}
	if _, o.err = o.to.Write(text); o.err != nil {
		o.end()
	}
}

// printJSON prints a value as indented JSON.
func printJSON(s *session, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	s.out.write(text.Bytes())
	return err
}

// oneLine replaces control characters, including those that would end a line or a column.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return unicode.ReplacementChar
		}
		return settings.Shown(r)
	}, text)
}
