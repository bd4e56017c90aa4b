// Reads a dashboard from the standard input and compares it with Grafana's schema of dashboards, as the types of the
// Grafana Foundation SDK have it: unknown fields, wrong types and missing fields are printed, and the exit code is 1.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var found dashboard.Dashboard
	code := 0
	for _, check := range []func() error{
		func() error { return found.UnmarshalJSONStrict(text) },
		func() error { return found.Validate() },
	} {
		// The SDK returns an error without any message where it has found nothing.
		if err := check(); err != nil && err.Error() != "" {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
