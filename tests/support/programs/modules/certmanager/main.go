// Issues authorities with cert-manager's own code: reads a Certificate in JSON, and prints the data of its Secret in
// JSON, once as an issuer of the type SelfSigned issues it, and once as one of the type CA.
package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log"
	"os"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
)

type secret struct {
	Certificate string `json:"tls.crt"`
	Key         string `json:"tls.key"`
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// template returns what is signed for a Certificate: cert-manager writes a request, and reads it again.
func template(certificate *certmanager.Certificate, key crypto.Signer) *x509.Certificate {
	request := must(pki.EncodeCSR(must(pki.GenerateCSR(certificate)), key))
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	spec := certmanager.CertificateRequestSpec{
		Request:  bytes.TrimSpace(text),
		IsCA:     certificate.Spec.IsCA,
		Duration: certificate.Spec.Duration,
		Usages:   certificate.Spec.Usages,
	}
	return must(pki.CertificateTemplateFromCertificateRequest(&certmanager.CertificateRequest{Spec: spec}))
}

func selfSigned(certificate *certmanager.Certificate, key crypto.Signer) ([]byte, *x509.Certificate) {
	unsigned := template(certificate, key)
	text, signed, err := pki.SignCertificate(unsigned, unsigned, key.Public(), key)
	return must(text, err), signed
}

func main() {
	var certificate certmanager.Certificate
	must(true, json.NewDecoder(os.Stdin).Decode(&certificate))
	key := must(pki.GeneratePrivateKeyForCertificate(&certificate))
	text := string(must(pki.EncodePrivateKey(key, certificate.Spec.PrivateKey.Encoding)))

	own, _ := selfSigned(&certificate, key)
	company := certificate.DeepCopy()
	company.Spec.CommonName = "company"
	companyKey := must(pki.GeneratePrivateKeyForCertificate(company))
	_, root := selfSigned(company, companyKey)
	bundle := must(pki.SignCSRTemplate([]*x509.Certificate{root}, companyKey, template(&certificate, key)))

	issued := map[string]secret{
		"SelfSigned": {Certificate: string(own), Key: text},
		"CA":         {Certificate: string(bundle.ChainPEM), Key: text},
	}
	must(true, json.NewEncoder(os.Stdout).Encode(issued))
}
