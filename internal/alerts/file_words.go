package alerts

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

const maxTemplateBytes = 4096

// wordFuncs are the functions of templates in addition to those of text/template.
var wordFuncs = template.FuncMap{"lower": strings.ToLower, "upper": strings.ToUpper}

// knownFuncs are the functions that a template may call. printf is not one, because it can make text of any length.
var knownFuncs = []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "print", "lower", "upper"}

// wordNames are the fields that a template may use.
var wordNames = func() (names []string) {
	for f := range reflect.TypeFor[WordFields]().Fields() {
		names = append(names, f.Name)
	}
	return names
}()

// template parses the template of a title or a text, and tries it on examples. It returns nil for none.
func (c *fileCompiler) template(t Template, path string) *template.Template {
	if t == "" {
		return nil
	}
	if len(t) > maxTemplateBytes {
		c.Add(path, "has %d bytes; want at most %d", len(t), maxTemplateBytes)
		return nil
	}
	made, err := template.New("").Funcs(wordFuncs).Parse(string(t))
	if err != nil {
		c.Add(path, "%s; write fields as {{.User}}", templateError(err))
		return nil
	}
	if len(made.Templates()) > 1 || made.Tree == nil {
		c.Add(path, "must not define templates; write the text itself")
		return nil
	}
	if err := checkNode(made.Root); err != nil {
		c.Add(path, "%s", err)
		return nil
	}
	for _, a := range exampleAlerts {
		f := wordFields("rule", &a)
		if err := made.Execute(io.Discard, &f); err != nil {
			c.Add(path, "fails on an example alert: %s", templateError(err))
			return nil
		}
	}
	return made
}

// templateError returns the error without the position in the template, "template: :1:2: ".
func templateError(err error) string {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "template: :"), "\n")
	if place, rest, ok := strings.Cut(text, ": "); ok && strings.Trim(place, "0123456789:") == "" {
		text = rest
	}
	return strings.TrimPrefix(text, `executing "" `)
}

// exampleAlerts are the alerts on which templates are tried: one with every field, and one with as few as possible.
var exampleAlerts = []Alert{
	{ID: "a", Severity: Warning, Type: limits.EventExceeded, Key: "api:user:7", Name: "minute", Policy: "api", Window: "1m", User: "7", Limit: 100,
		Denied: 12, Events: 3, FirstAt: 1772404200000, LastAt: 1772404260000},
	{ID: "b", Severity: Info, Type: limits.EventWarning, Key: "global", Name: "1m", Window: "1m", Limit: 1, Denied: 1, Events: 1},
}

// checkNode allows only what a try on examples can check: known fields and functions, and no loops, which could be long.
func checkNode(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return checkNodes(n.Nodes)
	case *parse.ActionNode:
		return checkNode(n.Pipe)
	case *parse.IfNode:
		return checkNodes([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.WithNode:
		return errors.New("with is not supported; use if, and fields as {{.User}}")
	case *parse.PipeNode:
		return checkPipe(n)
	case *parse.FieldNode:
		return checkField(n.Ident)
	case *parse.VariableNode:
		if len(n.Ident) == 1 {
			return errors.New("{{$}} is all fields at once; name one, such as {{.User}}")
		}
		return checkField(n.Ident[1:])
	case *parse.IdentifierNode:
		if !slices.Contains(knownFuncs, n.Ident) {
			return fmt.Errorf("unknown function %s%s; want one of %s", yamlfile.Quote(n.Ident), yamlfile.DidYouMean(n.Ident, knownFuncs),
				strings.Join(knownFuncs, ", "))
		}
		return nil
	case *parse.TextNode, *parse.CommentNode, *parse.StringNode, *parse.NumberNode, *parse.BoolNode:
		return nil
	case *parse.DotNode:
		return errors.New("{{.}} is all fields at once; name one, such as {{.User}}")
	default:
		return fmt.Errorf("%s is not supported; want text, fields such as {{.User}}, if, and functions", yamlfile.Quote(n.String()))
	}
}

func checkPipe(n *parse.PipeNode) error {
	if len(n.Decl) > 0 { // a variable that is doubled forty times would fill the memory
		return fmt.Errorf("%s declares a variable, which is not supported; use the field itself", yamlfile.Quote(n.String()))
	}
	for _, cmd := range n.Cmds {
		if err := checkNodes(cmd.Args); err != nil {
			return err
		}
	}
	return nil
}

func checkNodes(nodes []parse.Node) error {
	for _, n := range nodes {
		if err := checkNode(n); err != nil {
			return err
		}
	}
	return nil
}

func checkField(names []string) error {
	if len(names) != 1 || !slices.Contains(wordNames, names[0]) {
		name := strings.Join(names, ".")
		return fmt.Errorf("unknown field .%s%s; want one of .%s", strings.Trim(yamlfile.Quote(name), `"`), yamlfile.DidYouMean(name, wordNames),
			strings.Join(wordNames, ", ."))
	}
	return nil
}
