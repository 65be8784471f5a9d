"""Tables and figures made from record folders. Imports no torch and no mlflow: a report needs neither."""
