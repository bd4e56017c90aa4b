"""What the API server needs: CustomResourceDefinitions with their schemas, and admission policies."""
