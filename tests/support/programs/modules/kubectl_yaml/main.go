// Reads manifests as kubectl does: from lines with a JSON string each, which is a text in YAML. For each it prints a
// line with the documents of the text in JSON, or with the error.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

type result struct {
	Documents []json.RawMessage `json:"documents"`
	Error     string            `json:"error"`
}

func read(text string) result {
	var found result
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		var document json.RawMessage
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			return result{Error: err.Error()}
		}
		if len(document) > 0 {
			found.Documents = append(found.Documents, document)
		}
	}
}

func main() {
	lines, results := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var text string
		err := lines.Decode(&text)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		if err := results.Encode(read(text)); err != nil {
			log.Fatal(err)
		}
	}
}
